// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/attempt_logs.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <fcntl.h>
#include <unistd.h>

namespace skein::cluster {

namespace detail {

inline constexpr std::uint64_t most_table_bytes = std::uint64_t{4} << 20;

[[nodiscard]] inline std::string attempt_folder(const attempt_name& name) {
    return fmt::format("{}@{:x}@{}", name.job, name.submitted, name.attempt);
}

[[nodiscard]] inline std::uint64_t number_in(std::string_view text) noexcept {
    std::uint64_t out = 0;
    (void)std::from_chars(text.data(), text.data() + text.size(), out);
    return out;
}

[[noreturn]] inline void throw_log_fault(const std::string& path) {
    const int why = errno;
    throw error(why == ENOSPC || why == EDQUOT ? errc::disk_full
                : why == EFBIG                 ? errc::too_large
                                               : errc::io,
                fmt::format("{} cannot be written: {}", path, errno_text(why)));
}

inline void write_all(int to, std::string_view text, const std::string& path) {
    while (!text.empty()) {
        const auto n = ::write(to, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw_log_fault(path);
        text.remove_prefix(static_cast<std::size_t>(n));
    }
}

/// Reads a log file record by record.
class log_file {
public:
    log_file(const std::string& path, std::uint64_t first, std::uint64_t offset)
        : from_(path, std::ios::binary), number_(first), offset_(offset) {
        from_.seekg(static_cast<std::streamoff>(offset));
    }
    /// The next line; false: there is none that is whole.
    [[nodiscard]] bool next() {
        for (;;) {
            if (!std::getline(from_, text_) || from_.eof()) return false;
            offset_ += text_.size() + 1;
            if (text_.starts_with("- ")) {
                number_ += number_in(std::string_view(text_).substr(2));
                continue;
            }
            ++number_;
            return true;
        }
    }
    [[nodiscard]] std::uint64_t number() const noexcept { return number_ - 1; } ///< of that line
    [[nodiscard]] std::uint64_t after() const noexcept { return number_; }
    [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; } ///< behind it
    [[nodiscard]] proc::output_line line() const {
        return {text_.starts_with("2"), text_.size() > 2 ? text_.substr(2) : std::string()};
    }

private:
    std::ifstream from_;
    std::string text_;
    std::uint64_t number_, offset_;
};

} // namespace detail

SKEIN_INLINE void log_piece::add(std::uint64_t number, bool is_error, std::string_view line) {
    if (count == 0) first = number;
    if (text.size() + line.size() > most || number != first + count) return;
    text += is_error ? "2 " : "1 ";
    text += line;
    text += '\n';
    ++count;
}

// ---- writing ------------------------------------------------------------------------------------

SKEIN_INLINE attempt_logs::attempt_logs(std::string folder, attempt_log_bounds bounds)
    : folder_(std::move(folder)), bounds_(bounds) {}

SKEIN_INLINE std::shared_ptr<attempt_logs::writer> attempt_logs::begin(const attempt_name& name,
                                                                       std::uint64_t first) {
    return std::make_shared<writer>(shared_from_this(), detail::attempt_folder(name), first);
}

SKEIN_INLINE attempt_logs::writer::writer(std::shared_ptr<attempt_logs> of, std::string folder,
                                          std::uint64_t first)
    : of_(std::move(of)), folder_(std::move(folder)), next_(first) {
    std::error_code why;
    std::filesystem::create_directories(of_->folder_ + "/" + folder_, why);
    if (why)
        throw error(why == std::errc::no_space_on_device ? errc::disk_full : errc::io,
                    fmt::format("the folder {}/{} cannot be made: {}", of_->folder_, folder_,
                                why.message()));
    const std::lock_guard held(of_->mutex_);
    ++of_->running_[folder_];
}
SKEIN_INLINE attempt_logs::writer::~writer() {
    const std::lock_guard held(of_->mutex_);
    if (--of_->running_[folder_] == 0) of_->running_.erase(folder_);
}

SKEIN_INLINE void attempt_logs::writer::open(std::uint64_t first) {
    of_->make_room();
    const auto path = fmt::format("{}/{}/{:020}.log", of_->folder_, folder_, first);
    file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_) detail::throw_log_fault(path);
    if (!before_.empty()) (void)::unlink(before_.c_str());
    before_ = std::exchange(current_, path);
    next_ = first;
    bytes_ = 0;
}

SKEIN_INLINE void attempt_logs::writer::add(const log_piece& piece) {
    if (piece.count == 0) return;
    if (!file_ || bytes_ + piece.text.size() > of_->bounds_.half) open(piece.first);
    try {
        std::string gap;
        if (piece.first > next_) gap = fmt::format("- {}\n", piece.first - next_);
        detail::write_all(file_.get(), gap, current_);
        detail::write_all(file_.get(), piece.text, current_);
        bytes_ += gap.size() + piece.text.size();
        next_ = piece.first + piece.count;
    } catch (const error&) {
        file_.reset(); // half a line may be there: another file begins with the next piece
        throw;
    }
}

/// Attempts that have ended lose their files, the oldest first.
SKEIN_INLINE void attempt_logs::make_room() {
    namespace fs = std::filesystem;
    struct one {
        fs::file_time_type used;
        fs::path path;
        std::uint64_t bytes;
    };
    const std::lock_guard held(mutex_);
    std::vector<one> ended;
    std::uint64_t all = bounds_.half; // of the file that is to come
    std::error_code none;
    for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
        std::uint64_t bytes = 0;
        std::error_code inside;
        for (fs::directory_iterator f(at->path(), inside), last; !inside && f != last;
             f.increment(inside)) {
            std::error_code of_this;
            const auto size = fs::file_size(f->path(), of_this);
            if (!of_this) bytes += size;
        }
        all += bytes;
        std::error_code of_this;
        const auto used = fs::last_write_time(at->path(), of_this);
        if (!of_this && !running_.contains(at->path().filename().string()))
            ended.push_back({used, at->path(), bytes});
    }
    std::sort(ended.begin(), ended.end(),
              [](const one& a, const one& b) { return a.used < b.used; });
    for (const auto& e : ended) {
        if (all <= bounds_.all) return;
        fs::remove_all(e.path, none);
        all -= e.bytes;
    }
}

// ---- reading ------------------------------------------------------------------------------------

/// By their lines.
SKEIN_INLINE std::vector<attempt_logs::file> attempt_logs::files_of(
    const attempt_name& name) const {
    namespace fs = std::filesystem;
    std::vector<file> out;
    const auto prefix = fmt::format("{}@{:x}@", name.job, name.submitted);
    std::error_code none;
    for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
        const auto text = at->path().filename().string();
        if (!text.starts_with(prefix)) continue;
        const auto attempt = detail::number_in(std::string_view(text).substr(prefix.size()));
        if (name.attempt != 0 && attempt != name.attempt) continue;
        std::error_code inside;
        for (fs::directory_iterator f(at->path(), inside), last; !inside && f != last;
             f.increment(inside))
            if (f->path().extension() == ".log")
                out.push_back({f->path().string(), static_cast<std::uint32_t>(attempt),
                               detail::number_in(f->path().stem().string())});
    }
    std::sort(out.begin(), out.end(),
              [](const file& a, const file& b) { return a.first < b.first; });
    return out;
}

SKEIN_INLINE std::uint64_t attempt_logs::end_of(const file& of) const {
    detail::log_file all(of.path, of.first, 0);
    while (all.next()) {}
    return all.after();
}

/// True when the run of lines may go on in the next file.
SKEIN_INLINE bool attempt_logs::read_file(const file& of, std::uint64_t from, std::size_t& left,
                                          logged_lines& into) {
    place begin{of.path, of.first, 0};
    {
        const std::lock_guard held(mutex_);
        if (last_.path == of.path && last_.number <= from) begin = last_;
    }
    detail::log_file lines(of.path, begin.number, begin.offset);
    bool is_over = false;
    for (place at = begin; lines.next(); at = {of.path, lines.after(), lines.offset()}) {
        if (lines.number() < from) continue;
        if (into.lines.empty()) into.first = lines.number();
        const bool is_next = lines.number() == into.first + into.lines.size();
        auto line = lines.line();
        const auto cost = line.text.size() + proc::line_queue::line_cost;
        is_over = !is_next || (!into.lines.empty() && cost > left);
        if (is_over) {
            const std::lock_guard held(mutex_);
            last_ = at;
            break;
        }
        left -= std::min(left, cost);
        into.lines.push_back(std::move(line));
    }
    return !is_over;
}

SKEIN_INLINE logged_lines attempt_logs::read(const attempt_name& name, std::uint64_t from,
                                             std::size_t bytes, std::uint64_t tail) {
    logged_lines out;
    const auto all = files_of(name);
    if (all.empty()) return out;
    if (tail != 0) {
        const auto end = end_of(all.back());
        from = std::max(from, end > tail ? end - tail : 0);
    }
    auto at = std::upper_bound(all.begin(), all.end(), from,
                               [](std::uint64_t n, const file& f) { return n < f.first; });
    if (at != all.begin()) --at;
    for (; at != all.end(); ++at) {
        if (!out.lines.empty() && at->first != out.first + out.lines.size()) break;
        if (!read_file(*at, from, bytes, out)) break;
    }
    if (out.lines.empty()) out.first = from;
    return out;
}

// ---- tables -------------------------------------------------------------------------------------

SKEIN_INLINE void attempt_logs::keep_table(const attempt_name& name, const std::string& run,
                                           const std::string& path) {
    const auto folder = folder_ + "/" + detail::attempt_folder(name);
    std::error_code none;
    if (run.find('/') != run.npos || !std::filesystem::is_directory(folder, none)) return;
    std::ifstream from(path, std::ios::binary);
    std::string text(detail::most_table_bytes, '\0');
    from.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(from.gcount(), 0)));
    text.resize(text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1);
    if (text.empty()) return;
    std::ofstream(folder + "/table.csv", std::ios::binary) << run << '\n' << text;
}

SKEIN_INLINE std::pair<std::string, std::string> attempt_logs::table(
    const attempt_name& name) const {
    namespace fs = std::filesystem;
    const auto prefix = fmt::format("{}@{:x}@", name.job, name.submitted);
    std::uint64_t newest = 0;
    std::error_code none;
    for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
        const auto text = at->path().filename().string();
        if (!text.starts_with(prefix) || !fs::exists(at->path() / "table.csv", none)) continue;
        newest = std::max(newest, detail::number_in(std::string_view(text).substr(prefix.size())));
    }
    if (newest == 0) return {};
    std::ifstream from(fmt::format("{}/{}{}/table.csv", folder_, prefix, newest), std::ios::binary);
    std::pair<std::string, std::string> out;
    std::getline(from, out.first);
    out.second.assign(std::istreambuf_iterator<char>(from), {});
    return out;
}

} // namespace skein::cluster
