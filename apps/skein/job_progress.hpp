// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far a folder is on its way: on a terminal one line that changes, elsewhere a line now and
// then. What is done soon says nothing.

#include <skein/core/clock.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/units.hpp>
#include <skein/core/with_commas.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

namespace skein_program {

///   all_files   0: they are being listed
inline std::string reading_text(const std::string& folder, std::size_t files, std::size_t all_files,
                                std::uint64_t bytes, std::uint64_t all_bytes) {
    const auto shown = skein::printable(folder);
    if (all_files == 0)
        return fmt::format("lists {}: {} files so far", shown, skein::with_commas(files));
    return fmt::format("reads {}: {} of {} files, {}", shown, skein::with_commas(files),
                       skein::with_commas(all_files), skein::binary_part(bytes, all_bytes));
}

inline std::string sending_text(const std::string& folder, std::uint64_t sent, std::uint64_t all) {
    return fmt::format("sends {}: {}", skein::printable(folder), skein::binary_part(sent, all));
}

/// On standard error.
class progress_line {
public:
    progress_line() : is_terminal_(::isatty(2) == 1), next_(now() + first()) {}
    progress_line(const progress_line&) = delete;
    progress_line& operator=(const progress_line&) = delete;
    ~progress_line() {
        if (is_open_) std::fputc('\n', stderr);
    }

    /// `text` is asked for when it is time to say something.
    template <class Text>
    void say(const Text& text) {
        const auto at = now();
        if (at < next_) return;
        next_ = at + (is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(5));
        const auto line = fmt::format("skein job: {}", text());
        if (is_terminal_)
            (void)std::fprintf(stderr, "\r%s \x1b[K", line.c_str());
        else
            (void)std::fprintf(stderr, "%s\n", line.c_str());
        is_open_ = is_terminal_;
    }

private:
    [[nodiscard]] static skein::time_point now() { return skein::system_clock().now(); }
    [[nodiscard]] skein::duration first() const {
        return is_terminal_ ? std::chrono::milliseconds(300) : std::chrono::seconds(5);
    }

    bool is_terminal_, is_open_ = false;
    skein::time_point next_;
};

} // namespace skein_program
