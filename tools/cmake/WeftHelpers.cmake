include(CMakePackageConfigHelpers)

# Flags that every target of ours is built with.  Called once, after the options exist.
function(weft_apply_build_options)
  add_library(weft_build_flags INTERFACE)
  target_compile_definitions(weft_build_flags INTERFACE _POSIX_C_SOURCE=200809L)
  target_compile_options(weft_build_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
    -Wcast-qual -Wcast-align -Wstrict-prototypes -Wmissing-prototypes
    -Wold-style-definition -Wvla -Wundef -Wformat=2 -Wwrite-strings
    -Wswitch-enum -Wimplicit-fallthrough -Wnull-dereference
    -fno-common -fstack-protector-strong -fno-omit-frame-pointer)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    target_compile_options(weft_build_flags INTERFACE
      -Wlogical-op -Wduplicated-cond -Wduplicated-branches)
    # With optimisation gcc follows pointers through calls but cannot know that weft_whyf
    # answers the error it was given; clang's analyser (preset analyze) can and does.
    target_compile_options(weft_build_flags INTERFACE
      $<$<NOT:$<CONFIG:Debug>>:-Wno-null-dereference>
      $<$<NOT:$<CONFIG:Debug>>:-Wno-maybe-uninitialized>)
  endif()
  if(WEFT_WERROR)
    target_compile_options(weft_build_flags INTERFACE -Werror)
  endif()
  if(WEFT_BUILD_FUZZERS)  # without this the library is not instrumented
    target_compile_options(weft_build_flags INTERFACE -fsanitize=fuzzer-no-link)
  endif()
  if(WEFT_SANITIZE)
    target_compile_options(weft_build_flags INTERFACE -fsanitize=${WEFT_SANITIZE}
      -fno-sanitize-recover=all)
    target_link_options(weft_build_flags INTERFACE -fsanitize=${WEFT_SANITIZE})
  endif()
endfunction()

# weft_component(<name> SOURCES ... DEPENDS <component>...)
# One static library per top-level folder.  Only include/ is visible to
# others; private headers sit next to the .c files and are not on any path.
function(weft_component name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS;PRIVATE_LIBS" ${ARGN})
  set(lib weft_${name})
  add_library(${lib} STATIC ${A_SOURCES})
  add_library(weft::${name} ALIAS ${lib})
  set_target_properties(${lib} PROPERTIES EXPORT_NAME ${name}
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${lib} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${lib} PRIVATE $<BUILD_INTERFACE:weft_build_flags>
    ${A_PRIVATE_LIBS})
  foreach(d IN LISTS A_DEPENDS)
    target_link_libraries(${lib} PUBLIC weft_${d})
  endforeach()
  install(TARGETS ${lib} EXPORT weft-targets)
  if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include)
    install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
endfunction()

# weft_test(<component> <module>): tests/<component>/test_<module>.c is one
# executable (called from tests/<component>/CMakeLists.txt), one ctest entry named <component>.<module>.
function(weft_test component module)
  set(exe test_${component}_${module})
  add_executable(${exe} test_${module}.c)
  target_include_directories(${exe} PRIVATE
    ${PROJECT_SOURCE_DIR}/tests/support
    ${PROJECT_SOURCE_DIR}/${component})     # white-box: private headers
  target_link_libraries(${exe} PRIVATE weft_${component} weft_build_flags
    PkgConfig::CMOCKA ${ARGN})
  add_test(NAME ${component}.${module} COMMAND ${exe})
  set(timeout 30)
  if(WEFT_SANITIZE)
    set(timeout 120) # patience only: nothing is measured
  endif()
  set_tests_properties(${component}.${module} PROPERTIES
    LABELS "unit;${component}" TIMEOUT ${timeout}
    FAIL_REGULAR_EXPRESSION "runtime error:;ERROR: AddressSanitizer;WARNING: ThreadSanitizer")
endfunction()

# weft_fuzz(<name> <component>): libFuzzer binary when WEFT_BUILD_FUZZERS, and in
# every build a replay binary that runs the committed corpus under ctest.
function(weft_fuzz name component)
  add_executable(fuzz_replay_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_${name}.c
    ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.c)
  target_link_libraries(fuzz_replay_${name} PRIVATE weft_${component} weft_build_flags)
  add_test(NAME fuzz.${name} COMMAND fuzz_replay_${name}
    ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 60)
  if(WEFT_BUILD_FUZZERS)
    add_executable(fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_${name}.c)
    target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${name} PRIVATE weft_${component} weft_build_flags)
  endif()
endfunction()

# The installed package: headers, static libraries, a CMake config and a pkg-config file that
# name everything the libraries need in turn.
function(weft_install_package)
  set(dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
  set(WEFT_PC_LLHTTP "")
  set(WEFT_CONFIG_LLHTTP "# llhttp: compiled into weft_http")
  if(LLHTTP_LIBRARY)
    set(WEFT_PC_LLHTTP -lllhttp)
    set(WEFT_CONFIG_LLHTTP "find_dependency(Llhttp)")
  endif()
  install(EXPORT weft-targets NAMESPACE weft:: DESTINATION ${dir})
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/tools/cmake/weft-config.cmake.in
    ${PROJECT_BINARY_DIR}/weft-config.cmake INSTALL_DESTINATION ${dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/weft-config-version.cmake
    COMPATIBILITY SameMinorVersion)   # 0.x: minor is breaking
  file(RELATIVE_PATH WEFT_PC_UP /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/weft.pc.in
    ${PROJECT_BINARY_DIR}/weft.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake
    ${PROJECT_BINARY_DIR}/weft-config-version.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/FindLibev.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/FindLlhttp.cmake DESTINATION ${dir})
  install(FILES ${PROJECT_BINARY_DIR}/weft.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
