// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer sched, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/sched/demands.hpp>
#include <skein/sched/detail/scheduler.hpp>
#include <skein/sched/resources.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/sched/task_environment.hpp>

#include <skein/sched/detail/demands.ipp>
#include <skein/sched/detail/resources.ipp>
#include <skein/sched/detail/scheduler.ipp>
#include <skein/sched/detail/scheduler_groups.ipp>
#include <skein/sched/detail/scheduler_places.ipp>
#include <skein/sched/detail/scheduler_pump.ipp>
#include <skein/sched/detail/scheduler_report.ipp>
#include <skein/sched/detail/task_environment.ipp>
