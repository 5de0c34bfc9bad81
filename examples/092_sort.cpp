// SPDX-License-Identifier: Apache-2.0
// Sorts a text that is six times as large as the memory for objects.
//
//     092_sort                       makes a text of 48 MiB and sorts it
//     092_sort IN OUT                sorts the lines of a file, as LC_ALL=C sort does
//     092_sort IN OUT MIB            with pieces for a store of so many MiB (8)
//
// Each piece of the text is sorted by a task, which cuts it into ranges of lines and puts each one into
// the store. One more task for each range merges what all pieces have of it, read in place, and writes it
// where it belongs in the output. All ranges of all pieces are there between the two, and do not fit the
// store: those that were not read for longest lie in files meanwhile. Nothing here says so.
#include <skein/core/metric_registry.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace sorting {

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

/// A file that is closed in the end.
class text_file {
public:
    text_file(const std::string& path, int flags)
        : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
        if (fd_ < 0) throw std::runtime_error(path + ": " + std::strerror(errno));
    }
    text_file(const text_file&) = delete;
    text_file& operator=(const text_file&) = delete;
    ~text_file() { ::close(fd_); }

    std::string read(std::uint64_t at, std::uint64_t bytes) const {
        std::string all(bytes, '\0');
        std::size_t done = 0;
        while (done < bytes) {
            const auto n = ::pread(fd_, all.data() + done, bytes - done, off_t(at + done));
            if (n < 0) throw std::runtime_error(std::strerror(errno));
            if (n == 0) break;
            done += std::size_t(n);
        }
        all.resize(done);
        return all;
    }
    void write(std::uint64_t at, std::string_view all) const {
        while (!all.empty()) {
            const auto n = ::pwrite(fd_, all.data(), all.size(), off_t(at));
            if (n < 0) throw std::runtime_error(std::strerror(errno));
            all.remove_prefix(std::size_t(n));
            at += std::uint64_t(n);
        }
    }

private:
    int fd_;
};

/// A line with its end; its first eight bytes decide most comparisons.
struct line {
    std::uint64_t first = 0;
    std::string_view text;

    explicit line(std::string_view all) : text(all) {
        unsigned char bytes[8] = {};
        std::memcpy(bytes, all.data(), std::min<std::size_t>(8, all.size() - 1));
        for (const auto byte : bytes) first = first << 8 | byte;
    }
    /// Without its end.
    std::string_view words() const { return text.substr(0, text.size() - 1); }
    friend bool operator<(const line& a, const line& b) {
        return a.first != b.first ? a.first < b.first : a.words() < b.words();
    }
};

/// Takes the first line off.
line next_line(std::string_view& text) {
    const auto end = text.find('\n');
    const auto size = end == text.npos ? text.size() : end + 1;
    const line one(text.substr(0, size));
    text.remove_prefix(size);
    return one;
}

std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return hash;
}

/// The lines that begin in a part of a file.
std::string lines_of(const text_file& from, std::uint64_t at, std::uint64_t bytes) {
    std::uint64_t begin = at == 0 ? 0 : at - 1; // the end of the line before
    auto text = from.read(begin, at + bytes - begin);
    if (at != 0) {
        const auto end = text.find('\n');
        text.erase(0, end == text.npos ? text.size() : end + 1);
    }
    if (text.empty()) return text;
    for (std::uint64_t more = at + bytes; text.back() != '\n';) {
        const auto rest = from.read(more, 4096);
        if (rest.empty()) {
            text += '\n'; // the last line of the file
            break;
        }
        text += rest.substr(0, rest.find('\n') == rest.npos ? rest.size() : rest.find('\n') + 1);
        more += rest.size();
    }
    return text;
}

/// What a piece of the text has of each range.
struct piece {
    std::vector<skein::ref<std::string>> ranges;
    std::vector<std::uint64_t> bytes;
};

// [tasks]
/// Sorts a piece and cuts it: a range ends before its border.
skein::task<piece> sort_piece(std::string path, std::uint64_t at, std::uint64_t bytes,
                              std::vector<std::string> borders) {
    const auto text = lines_of(text_file(path, O_RDONLY), at, bytes);
    std::vector<line> lines;
    for (std::string_view rest = text; !rest.empty();) lines.push_back(next_line(rest));
    std::sort(lines.begin(), lines.end());
    piece out;
    auto from = lines.begin();
    for (std::size_t i = 0; i <= borders.size(); ++i) {
        const auto to = i == borders.size() ? lines.end()
                                            : std::lower_bound(from, lines.end(), line(borders[i]));
        std::string range;
        for (; from != to; ++from) range += from->text;
        out.bytes.push_back(range.size());
        auto putting = skein::put(std::move(range));
        out.ranges.push_back(co_await putting);
    }
    co_return out;
}

/// How many lines a range has, and sums that say whether they are right and in order.
struct merged {
    std::uint64_t lines = 0, sum = 0, sum_by_place = 0;
};

/// Merges what the pieces have of a range, where it lies, and writes it to its place.
merged merge_range(std::vector<skein::view<std::string>> sorted, std::string path,
                   std::uint64_t at) {
    using head = std::pair<line, std::size_t>; // and whose it is
    const auto later = [](const head& a, const head& b) { return b.first < a.first; };
    std::priority_queue<head, std::vector<head>, decltype(later)> heads(later);
    std::vector<std::string_view> rest;
    for (const auto& one : sorted) {
        rest.push_back(*one);
        if (!rest.back().empty()) heads.emplace(next_line(rest.back()), rest.size() - 1);
    }
    const text_file out(path, O_WRONLY);
    merged done;
    std::string block;
    while (!heads.empty()) {
        const auto [first, from] = heads.top();
        heads.pop();
        if (!rest[from].empty()) heads.emplace(next_line(rest[from]), from);
        const auto hash = hash_of(first.text);
        done.sum += hash;
        done.sum_by_place += ++done.lines * hash;
        block += first.text;
        if (block.size() < mebi && !heads.empty()) continue;
        out.write(at, block);
        at += block.size();
        block.clear();
    }
    return done;
}
// [/tasks]

/// Lines that divide the text into ranges of about the same size.
std::vector<std::string> borders_of(const std::string& path, std::uint64_t bytes,
                                    std::size_t ranges) {
    const text_file from(path, O_RDONLY);
    std::vector<std::string> some;
    const std::size_t samples = ranges * 32;
    for (std::size_t i = 0; i < samples; ++i) {
        const auto text = from.read(bytes / samples * i, 4096);
        const auto begin = text.find('\n');
        if (begin == text.npos) continue;
        const auto end = text.find('\n', begin + 1);
        if (end != text.npos) some.push_back(text.substr(begin + 1, end - begin));
    }
    std::sort(some.begin(), some.end(),
              [](const auto& a, const auto& b) { return line(a) < line(b); });
    std::vector<std::string> out;
    for (std::size_t i = 1; i < ranges && !some.empty(); ++i)
        out.push_back(some[some.size() * i / ranges]);
    return out;
}

/// Lines of 10 to 90 letters.
void make_text(const std::string& path, std::uint64_t bytes) {
    const text_file to(path, O_WRONLY | O_CREAT | O_TRUNC);
    std::uint64_t state = 42, at = 0;
    const auto next = [&state] {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    };
    while (at < bytes) {
        std::string block;
        while (block.size() < mebi) {
            for (auto letters = 10 + next() % 81; letters > 0;)
                for (auto some = next(); some != 0 && letters > 0; some >>= 8, --letters)
                    block += char('a' + (some & 0xff) % 26);
            block += '\n';
        }
        block.resize(std::min<std::uint64_t>(block.size(), bytes - at));
        block.back() = '\n';
        to.write(at, block);
        at += block.size();
    }
}

skein::task<int> sort_file(std::string in, std::string out, std::uint64_t store) {
    const auto bytes = std::filesystem::file_size(in);
    // Four ranges are read at a time, two by tasks that run and two by those that are next.
    const auto ranges = std::max<std::uint64_t>(1, bytes * 6 / (store * mebi));
    const auto each = std::max<std::uint64_t>(ranges * 80'000, store * mebi / 4);
    { const text_file made(out, O_WRONLY | O_CREAT | O_TRUNC); }

    // [sort]
    const auto borders = borders_of(in, bytes, ranges);
    std::vector<skein::ref<piece>> sorting;
    for (std::uint64_t at = 0; at < bytes; at += each)
        sorting.push_back(skein::remote<&sort_piece>(in, at, std::min(each, bytes - at), borders));
    std::vector<piece> pieces;
    for (auto& one : sorting) pieces.push_back(co_await std::move(one));

    std::vector<skein::ref<merged>> merging;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i <= borders.size(); ++i) {
        std::vector<skein::ref<std::string>> range;
        const auto begin = at;
        for (auto& one : pieces) {
            range.push_back(std::exchange(one.ranges[i], {})); // merged, it is not needed any more
            at += one.bytes[i];
        }
        merging.push_back(skein::remote<&merge_range>(std::move(range), out, begin));
    }
    merged all;
    for (const auto& one : merging) {
        const auto got = co_await one;
        all.sum_by_place += all.lines * got.sum + got.sum_by_place;
        all.lines += got.lines;
    }
    // [/sort]
    const auto files =
        skein::metric_registry::process().counter("skein_store_spilled_bytes_total", "").value();
    fmt::print("{} MiB, more than the store: {}\n", bytes / mebi, files > 0 ? "yes" : "no");
    fmt::print("{} lines\n", all.lines);
    fmt::print("checksum {:016x}\n", all.sum_by_place);
    co_return 0;
}

skein::task<int> app(std::vector<std::string> arguments) {
    if (arguments.size() >= 2) {
        const auto store =
            arguments.size() > 2 ? std::strtoull(arguments[2].c_str(), nullptr, 10) : 8;
        auto sorting = sort_file(arguments[0], arguments[1], std::max<std::uint64_t>(1, store));
        co_return co_await sorting;
    }
    std::string folder = std::filesystem::temp_directory_path() / "skein-092-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder for a text");
    const std::unique_ptr<std::string, void (*)(std::string*)> removed(&folder, [](std::string* f) {
        std::error_code none;
        std::filesystem::remove_all(*f, none);
    });
    make_text(folder + "/text", 48 * mebi);
    auto sorting = sort_file(folder + "/text", folder + "/sorted", 8);
    co_return co_await sorting;
}

} // namespace sorting

int main(int argc, char** argv) {
    skein::run_options how;
    how.store = "8MiB";
    return skein::run(argc, argv, sorting::app, how);
}

// With two workers it prints
//
//     48 MiB, more than the store: yes
//     986572 lines
//     checksum e235753cafbbf53c
