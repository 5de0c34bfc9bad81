// SPDX-License-Identifier: Apache-2.0
#pragma once
// A task for each output of each rank.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>

#include <array>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

/// One output of one rank.
struct rank_output::stream {
    std::shared_ptr<proc::child> process;
    int number = 0; ///< of the rank, among all
    bool is_error = false, is_shown = false;
    std::string path;
    unique_fd file;
    proc::line_queue lines; ///< of which the last part has no end yet
};

SKEIN_INLINE std::string rank_output_options::file(int attempt, int number, bool is_error) const {
    return fmt::format("{}/attempt_{}/{}/{}.log", folder, attempt, number,
                       is_error ? "stderr" : "stdout");
}
SKEIN_INLINE bool rank_output_options::has_file(int rank, bool is_error) const {
    const int bits = (redirect ? redirect(rank) : 0) | (tee ? tee(rank) : 0);
    return (bits & (is_error ? standard_error : standard_output)) != 0;
}
SKEIN_INLINE bool rank_output_options::is_shown(int rank, bool is_error) const {
    const int bit = is_error ? standard_error : standard_output;
    if (shown && !shown(rank)) return false;
    return ((tee ? tee(rank) : 0) & bit) != 0 || ((redirect ? redirect(rank) : 0) & bit) == 0;
}

SKEIN_INLINE rank_output::rank_output(rank_output_options options) : options_(std::move(options)) {
    if (options_.is_asked())
        printer_ = std::make_unique<proc::output_printer>(static_cast<bool>(options_.tee));
    if (!options_.writes_files()) return;
    std::error_code failed;
    std::filesystem::create_directories(options_.folder, failed);
    if (failed) throw errno_error(failed.value(), "make log folder", options_.folder);
    if (::access(options_.folder.c_str(), W_OK) != 0)
        throw errno_error(errno, "write to log folder", options_.folder);
}

SKEIN_INLINE void rank_output::take(int attempt, int rank, int number,
                                    std::shared_ptr<proc::child> from) {
    for (const bool is_error : {false, true}) {
        auto one = std::make_shared<stream>();
        one->process = from;
        one->number = number;
        one->is_error = is_error;
        one->is_shown = options_.is_shown(rank, is_error);
        if (options_.has_file(rank, is_error)) {
            one->path = options_.file(attempt, number, is_error);
            std::error_code ignored; // the open says it
            const auto folder = std::filesystem::path(one->path).parent_path();
            std::filesystem::create_directories(folder, ignored);
            one->file = unique_fd(
                ::open(one->path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
            if (!one->file) keep(*one, "");
        }
        passing_.spawn(pass_on(std::move(one)));
    }
}

/// Writes to the file. The first that cannot be written is said.
SKEIN_INLINE void rank_output::keep(stream& of, std::string_view bytes) {
    if (of.path.empty()) return;
    while (of.file && !bytes.empty()) {
        const auto n = ::write(of.file.get(), bytes.data(), bytes.size());
        if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
        if (n < 0 && errno != EINTR) break;
    }
    if (of.file && bytes.empty()) return;
    of.file.reset();
    const auto why = errno_error(errno, "write", std::exchange(of.path, {}));
    if (cut_off_++ == 0 && options_.say)
        options_.say(
            fmt::format("{}: what rank {} prints from here on is not kept", why.text(), of.number));
}

SKEIN_INLINE task<void> rank_output::pass_on(std::shared_ptr<stream> from) {
    std::vector<std::byte> piece(std::size_t{64} << 10);
    for (bool is_over = false; !is_over;) {
        auto reading = from->process->read_output(from->is_error, piece);
        const auto n = co_await reading;
        const std::string_view bytes(reinterpret_cast<const char*>(piece.data()), n);
        is_over = n == 0;
        keep(*from, bytes);
        if (!from->is_shown) continue;
        if (is_over)
            from->lines.end();
        else
            from->lines.add(from->is_error, bytes);
        std::vector<proc::worker_lines> some(1);
        some[0].worker = fmt::format("rank {}", from->number);
        some[0].lines = from->lines.take(std::size_t{1} << 20);
        if (some[0].lines.empty()) continue;
        auto printing = printer_->print(std::move(some));
        co_await printing;
    }
}

SKEIN_INLINE task<void> rank_output::end() {
    auto joined = as_result(passing_.join());
    (void)co_await joined;
    if (cut_off_ > 1 && options_.say)
        options_.say(fmt::format("{} files of what ranks have printed end too early", cut_off_));
}

} // namespace skein::spmd
