// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program may be started with its standard input, output or error closed (`prog >&-`, some launchers
// and cron). The next file or socket it opens then gets that number, and what it prints goes into it.
//
//     skein::rt::open_standard_files();   // first thing in main; skein::run does it

#include <skein/core/config.hpp>

namespace skein::rt {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed. Others stay as they
/// are. Call it before anything else is opened and before there are threads. Never throws; where there is
/// no /dev/null the place stays closed.
void open_standard_files() noexcept;

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/standard_files.ipp>
#endif
