/* Our declarations against NVIDIA's headers.  Compiled only where those are installed;
 * makes no code. */
#include "cuda_table.h"
#include "nccl_table.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stddef.h>

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(wefti_ipc_handle), "IPC handle");
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(wefti_ipc_handle), "IPC event");
static_assert(sizeof(cudaError_t) == sizeof(int), "cudaError_t");
static_assert(sizeof(enum cudaMemcpyKind) == sizeof(int), "cudaMemcpyKind");
static_assert((int)cudaErrorMemoryAllocation == WEFTI_CUDA_NOMEM, "no memory");
static_assert((int)cudaErrorInvalidValue == WEFTI_CUDA_INVALID_VALUE, "invalid value");
static_assert((int)cudaErrorInsufficientDriver == WEFTI_CUDA_OLD_DRIVER, "driver");
static_assert((int)cudaErrorNoDevice == WEFTI_CUDA_NO_DEVICE, "no device");
static_assert((int)cudaErrorInvalidResourceHandle == WEFTI_CUDA_BAD_HANDLE, "handle");
static_assert((int)cudaErrorNotReady == WEFTI_CUDA_NOT_READY, "not ready");
static_assert((int)cudaMemcpyHostToDevice == WEFTI_TO_DEVICE, "to device");
static_assert((int)cudaMemcpyDeviceToHost == WEFTI_TO_HOST, "to host");
static_assert((int)cudaMemcpyDeviceToDevice == WEFTI_ON_DEVICE, "on device");
static_assert(cudaStreamNonBlocking == WEFTI_STREAM_NONBLOCKING, "stream flags");
static_assert(cudaEventDisableTiming == WEFTI_EVENT_NO_TIMING, "event flags");
static_assert(cudaIpcMemLazyEnablePeerAccess == WEFTI_IPC_LAZY_PEER, "IPC flags");
static_assert(sizeof(struct cudaDeviceProp) <= WEFTI_CUDA_PROP_BYTES, "properties");
static_assert(offsetof(struct cudaDeviceProp, uuid) == WEFTI_CUDA_PROP_UUID, "uuid");

static_assert(sizeof(ncclUniqueId) == sizeof(wefti_nccl_id), "id");
static_assert(sizeof(ncclResult_t) == sizeof(int), "ncclResult_t");
static_assert((int)ncclUnhandledCudaError == WEFTI_NCCL_CUDA, "cuda");
static_assert((int)ncclInvalidUsage == WEFTI_NCCL_USAGE, "usage");
static_assert((int)ncclRemoteError == WEFTI_NCCL_REMOTE, "remote");
static_assert((int)ncclInProgress == WEFTI_NCCL_IN_PROGRESS, "in progress");
static_assert((int)ncclUint8 == WEFTI_NCCL_UINT8, "uint8");
static_assert((int)ncclFloat32 == WEFTI_NCCL_FLOAT32, "float32");
static_assert((int)ncclSum == WEFTI_NCCL_SUM, "sum");
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(wefti_nccl_config, blocking),
              "config: blocking");
static_assert(offsetof(ncclConfig_t, netName) == offsetof(wefti_nccl_config, net_name),
              "config: netName");
static_assert(offsetof(ncclConfig_t, splitShare) ==
                  offsetof(wefti_nccl_config, split_share),
              "config: splitShare");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(sizeof(ncclConfig_t) >= sizeof(wefti_nccl_config), "config: size");
static_assert(offsetof(ncclConfig_t, nvlinkCentricSched) ==
                  offsetof(wefti_nccl_config, nvlink_sched),
              "config: last field");
#endif
/* NOLINTNEXTLINE(misc-redundant-expression): equal is what they have to be */
static_assert(NCCL_CONFIG_UNDEF_INT == WEFTI_NCCL_UNSET, "config: unset");
