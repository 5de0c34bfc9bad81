// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer metrics.
// Written by scripts/check_mirror.py --write.

#include <skein/metrics/accumulators.hpp>
#include <skein/metrics/average.hpp>
#include <skein/metrics/classification.hpp>
#include <skein/metrics/confusion_matrix.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/error_rate.hpp>
#include <skein/metrics/metric.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/metrics/perplexity.hpp>
#include <skein/metrics/regression.hpp>
#include <skein/metrics/samples.hpp>
#include <skein/metrics/stat_scores.hpp>
