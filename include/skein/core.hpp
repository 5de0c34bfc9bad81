// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer core.
// Written by scripts/check_mirror.py --write.

#include <skein/core/config.hpp>
#include <skein/core/all.hpp>
#include <skein/core/any.hpp>
#include <skein/core/as_completed.hpp>
#include <skein/core/available_cores.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/channel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/fields.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/function.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/mutex.hpp>
#include <skein/core/permutation.hpp>
#include <skein/core/philox.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/race.hpp>
#include <skein/core/random.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/core/task.hpp>
#include <skein/core/this_process.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timeout.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/core/wait.hpp>
