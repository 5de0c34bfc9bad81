// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer report, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif

#include <skein/report/event_file.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/progress.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/settings.hpp>
#include <skein/report/summary.hpp>
#include <skein/report/svg.hpp>

#include <skein/report/detail/event_file.ipp>
#include <skein/report/detail/metrics.ipp>
#include <skein/report/detail/progress.ipp>
#include <skein/report/detail/run_dir.ipp>
#include <skein/report/detail/run_lock.ipp>
#include <skein/report/detail/settings.ipp>
#include <skein/report/detail/summary.ipp>
#include <skein/report/detail/svg.ipp>
