// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer report, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/report/cost.hpp>
#include <skein/report/event_file.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/report/progress.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/settings.hpp>
#include <skein/report/summary.hpp>
#include <skein/report/svg.hpp>

#include <skein/report/detail/cost.ipp>
#include <skein/report/detail/event_file.ipp>
#include <skein/report/detail/metrics.ipp>
#include <skein/report/detail/metrics_table.ipp>
#include <skein/report/detail/progress.ipp>
#include <skein/report/detail/run_dir.ipp>
#include <skein/report/detail/run_lock.ipp>
#include <skein/report/detail/run_rows.ipp>
#include <skein/report/detail/settings.ipp>
#include <skein/report/detail/summary.ipp>
#include <skein/report/detail/svg.ipp>
