// SPDX-License-Identifier: Apache-2.0
#pragma once
// The standard input, output and error of a process that others have started, and who reads what it
// prints.
//
// A program may be started with one of them closed (`prog >&-`, some launchers and cron). The next
// file or socket it opens then gets that number, and what it prints goes into it.
//
//     skein::proc::open_standard_files();   // first thing in main; skein::run does it
//     // in a process that may be killed: workers and ranks do it
//     skein::proc::print_by_lines();
//     // in one whose output is not what it is for: workers, heads and nodes do it
//     skein::proc::outlive_readers();

#include <skein/core/config.hpp>

namespace skein::proc {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed. Others stay
/// as they are. Call it before anything else is opened and before there are threads. Never throws;
/// where there is no /dev/null the place stays closed.
void open_standard_files() noexcept;

/// Each whole line that this process prints leaves it at once, also where its output is a file or a
/// pipe, which it would else keep by some thousand bytes and take along when it is killed: through
/// `stdout`, fmt, and std::cout. An output that has no buffer, or that has one by lines, stays as
/// it is.
void print_by_lines() noexcept;

/// A reader of its output that goes (`prog | head -1`), and a file that may not grow any more, do
/// not end this process: what it prints from then on is dropped, into /dev/null, and is no failure
/// of who prints it. What it starts is not touched by that, and where the program has said itself
/// what SIGPIPE or SIGXFSZ is to do, that stays.
void outlive_readers() noexcept;

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/standard_files.ipp>
#endif
