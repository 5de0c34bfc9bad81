// SPDX-License-Identifier: Apache-2.0
// The bodies of the layer metrics, compiled once.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include <skein/metrics/classification.hpp>
#include <skein/metrics/confusion_matrix.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/detail/shapes.hpp>
#include <skein/metrics/error_rate.hpp>
#include <skein/metrics/metric.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/metrics/perplexity.hpp>
#include <skein/metrics/regression.hpp>
#include <skein/metrics/samples.hpp>
#include <skein/metrics/stat_scores.hpp>

#include <skein/metrics/detail/classification.ipp>
#include <skein/metrics/detail/confusion_matrix.ipp>
#include <skein/metrics/detail/curves.ipp>
#include <skein/metrics/detail/error_rate.ipp>
#include <skein/metrics/detail/metric.ipp>
#include <skein/metrics/detail/metric_list.ipp>
#include <skein/metrics/detail/metrics_manager.ipp>
#include <skein/metrics/detail/perplexity.ipp>
#include <skein/metrics/detail/regression.ipp>
#include <skein/metrics/detail/samples.ipp>
#include <skein/metrics/detail/shapes.ipp>
#include <skein/metrics/detail/stat_scores.ipp>
