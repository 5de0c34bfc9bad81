// SPDX-License-Identifier: Apache-2.0
#pragma once
// A line of a run that its reporter does not say. Used by launch() and the Trainer.

#include <skein/train/run_config.hpp>
#include <skein/wire/json.hpp>

#include <unistd.h>

#include <cstdio>
#include <string>

namespace skein::train::detail {

/// A line to a person, to a program in its language, and nothing to nobody.
inline void say_note(const run_config& config, const std::string& text) {
    if (config.output == output_mode::quiet) return;
    const bool json = config.output == output_mode::json;
    const bool live = config.output == output_mode::automatic && ::isatty(STDERR_FILENO) != 0;
    const auto line = json ? dump_json(ordered_json{{"event", "note"}, {"text", text}}) + "\n"
                           : (live ? "\r\x1b[K" : "") + text + "\n";
    auto* to = json ? stdout : stderr;
    std::fwrite(line.data(), 1, line.size(), to);
    std::fflush(to);
}

} // namespace skein::train::detail
