# GPU libraries.  Nothing links against them: they are opened at run time.  Where NVIDIA's
# headers are installed, our declarations are checked against them at compile time.
#   WEFT_CUDA=AUTO  check when found    ON  fail when not found    OFF  never look
set(WEFT_CUDA AUTO CACHE STRING "Check the GPU tables against NVIDIA's headers")
set_property(CACHE WEFT_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT WEFT_CUDA STREQUAL "OFF")
  set(hints $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include
    /opt/cuda/include)
  find_path(WEFT_CUDA_INCLUDE cuda_runtime_api.h HINTS ${hints})
  find_path(WEFT_NCCL_INCLUDE nccl.h HINTS ${hints})
  mark_as_advanced(WEFT_CUDA_INCLUDE WEFT_NCCL_INCLUDE)
  if(WEFT_CUDA_INCLUDE AND WEFT_NCCL_INCLUDE)
    message(STATUS "GPU tables: checked against ${WEFT_CUDA_INCLUDE} and ${WEFT_NCCL_INCLUDE}")
    target_sources(weft_transport PRIVATE device_abi.c)
    set_source_files_properties(device_abi.c PROPERTIES COMPILE_OPTIONS
      "-isystem;${WEFT_CUDA_INCLUDE};-isystem;${WEFT_NCCL_INCLUDE}")
  elseif(WEFT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WEFT_CUDA=ON, but cuda_runtime_api.h or nccl.h is not found")
  else()
    message(STATUS "GPU tables: no CUDA and NCCL headers found, not checked")
  endif()
endif()
target_sources(weft_transport PRIVATE cuda_table.c nccl_table.c memory_cuda.c gpu.c gpu_digest.c
  hashers.c nccl_comm.c
  nccl_init.c nccl_profile.c nccl_plan.c nccl_receive.c nccl_store.c transfer_nccl.c
  slices.c sparse_order.c sparse_plan.c sparse_receive.c sparse_apply.c transfer_names.c
  ipc_plan.c ipc_map.c transfer_ipc.c
  source_gpu.c source_nccl.c source_ipc.c pickle_ipc_write.c)
target_link_libraries(weft_transport PRIVATE ${CMAKE_DL_LIBS})
