// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer sim, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif

#include <skein/sim/disk.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <skein/sim/detail/disk.ipp>
#include <skein/sim/detail/disk_crash.ipp>
#include <skein/sim/detail/faults.ipp>
#include <skein/sim/detail/local_rendezvous.ipp>
#include <skein/sim/detail/loop.ipp>
#include <skein/sim/detail/network.ipp>
