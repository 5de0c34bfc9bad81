// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer report.
// Written by scripts/check_mirror.py --write.

#include <skein/report/cost.hpp>
#include <skein/report/event_file.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/report/progress.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/settings.hpp>
#include <skein/report/summary.hpp>
#include <skein/report/svg.hpp>
