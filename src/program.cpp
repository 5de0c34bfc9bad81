// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer program, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/program/detail/driver.hpp>
#include <skein/program/detail/session_door.hpp>
#include <skein/program/helper_hosts.hpp>
#include <skein/program/job.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/program/pending.hpp>
#include <skein/program/program.hpp>
#include <skein/program/run.hpp>
#include <skein/program/run_options.hpp>
#include <skein/program/session.hpp>

#include <skein/program/detail/driver.ipp>
#include <skein/program/detail/helper_hosts.ipp>
#include <skein/program/detail/job.ipp>
#include <skein/program/detail/local_worker_main.ipp>
#include <skein/program/detail/local_workers.ipp>
#include <skein/program/detail/pending.ipp>
#include <skein/program/detail/program.ipp>
#include <skein/program/detail/run.ipp>
#include <skein/program/detail/run_options.ipp>
#include <skein/program/detail/session.ipp>
#include <skein/program/detail/session_door.ipp>
#include <skein/program/detail/worker_watch.ipp>
