// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer dist, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/dist/bootstrap.hpp>
#include <skein/dist/call_record.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/detail/collective_signature.hpp>
#include <skein/dist/detail/host_call.hpp>
#include <skein/dist/detail/nccl_runner.hpp>
#include <skein/dist/detail/pinned_lane.hpp>
#include <skein/dist/detail/place_card.hpp>
#include <skein/dist/detail/stream_io.hpp>
#include <skein/dist/doorbell.hpp>
#include <skein/dist/group_memory.hpp>
#include <skein/dist/half.hpp>
#include <skein/dist/hierarchical.hpp>
#include <skein/dist/host_communicator.hpp>
#include <skein/dist/library.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/models.hpp>
#include <skein/dist/nccl.hpp>
#include <skein/dist/nccl_communicator.hpp>
#include <skein/dist/nccl_domain.hpp>
#include <skein/dist/nccl_model.hpp>
#include <skein/dist/paired_communicator.hpp>
#include <skein/dist/placement.hpp>
#include <skein/dist/reduce.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shared_memory.hpp>
#include <skein/dist/shm.hpp>
#include <skein/dist/split.hpp>
#include <skein/dist/stub.hpp>

#include <skein/dist/detail/abort_body.ipp>
#include <skein/dist/detail/bootstrap.ipp>
#include <skein/dist/detail/call_record.ipp>
#include <skein/dist/detail/collective_signature.ipp>
#include <skein/dist/detail/comm_thread.ipp>
#include <skein/dist/detail/communicator.ipp>
#include <skein/dist/detail/cuda_runtime.ipp>
#include <skein/dist/detail/doorbell.ipp>
#include <skein/dist/detail/group_memory.ipp>
#include <skein/dist/detail/half.ipp>
#include <skein/dist/detail/hierarchical.ipp>
#include <skein/dist/detail/hierarchical_sums.ipp>
#include <skein/dist/detail/host_call.ipp>
#include <skein/dist/detail/host_communicator.ipp>
#include <skein/dist/detail/library.ipp>
#include <skein/dist/detail/links.ipp>
#include <skein/dist/detail/messages.ipp>
#include <skein/dist/detail/models.ipp>
#include <skein/dist/detail/nccl.ipp>
#include <skein/dist/detail/nccl_communicator.ipp>
#include <skein/dist/detail/nccl_domain.ipp>
#include <skein/dist/detail/nccl_model.ipp>
#include <skein/dist/detail/nccl_runner.ipp>
#include <skein/dist/detail/own_models.ipp>
#include <skein/dist/detail/paired_communicator.ipp>
#include <skein/dist/detail/pinned_lane.ipp>
#include <skein/dist/detail/place_card.ipp>
#include <skein/dist/detail/placement.ipp>
#include <skein/dist/detail/reduce.ipp>
#include <skein/dist/detail/ring.ipp>
#include <skein/dist/detail/ring_core.ipp>
#include <skein/dist/detail/ring_failure.ipp>
#include <skein/dist/detail/ring_frame.ipp>
#include <skein/dist/detail/ring_steps.ipp>
#include <skein/dist/detail/shared_memory.ipp>
#include <skein/dist/detail/shm.ipp>
#include <skein/dist/detail/shm_bootstrap.ipp>
#include <skein/dist/detail/shm_memory.ipp>
#include <skein/dist/detail/shm_steps.ipp>
#include <skein/dist/detail/shm_waiting.ipp>
#include <skein/dist/detail/split.ipp>
#include <skein/dist/detail/stream_io.ipp>
#include <skein/dist/detail/stub.ipp>
