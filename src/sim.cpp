// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer sim, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/sim/children.hpp>
#include <skein/sim/detail/modelled_memory.hpp>
#include <skein/sim/detail/modelled_nccl.hpp>
#include <skein/sim/detail/modelled_streams.hpp>
#include <skein/sim/detail/process_network.hpp>
#include <skein/sim/device_model.hpp>
#include <skein/sim/disk.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/host_loop.hpp>
#include <skein/sim/local_elastic.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <skein/sim/detail/children.ipp>
#include <skein/sim/detail/device_model.ipp>
#include <skein/sim/detail/device_model_tables.ipp>
#include <skein/sim/detail/disk.ipp>
#include <skein/sim/detail/disk_crash.ipp>
#include <skein/sim/detail/faults.ipp>
#include <skein/sim/detail/host_loop.ipp>
#include <skein/sim/detail/local_elastic.ipp>
#include <skein/sim/detail/local_rendezvous.ipp>
#include <skein/sim/detail/loop.ipp>
#include <skein/sim/detail/modelled_memory.ipp>
#include <skein/sim/detail/modelled_nccl.ipp>
#include <skein/sim/detail/modelled_nccl_calls.ipp>
#include <skein/sim/detail/modelled_streams.ipp>
#include <skein/sim/detail/network.ipp>
#include <skein/sim/detail/process_network.ipp>
