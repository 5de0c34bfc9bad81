// SPDX-License-Identifier: Apache-2.0
// Counts words: tasks read pieces of files, others add up what was found, each for its share of the words.
//
//     090_map_reduce [--top N] [--piece BYTES] [FILE or FOLDER]... [--workers N]
//
// On a cluster all nodes must see the files under the same names. Without any it writes some itself.
// [map]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <unistd.h>

namespace fs = std::filesystem;
using counts = std::unordered_map<std::string, std::uint64_t>;
using ranking = std::vector<std::pair<std::string, std::uint64_t>>;

bool is_letter(int c) { return c != EOF && std::isalpha(c) != 0; }

std::size_t reducer_of(const std::string& word, std::size_t reducers) {
    skein::fnv1a hash; // the same on every machine
    hash.text(word);
    return hash.value() % reducers;
}

// Counts the words that begin in [begin, end), for each reducer its own. It may run twice: nothing outside of it changes.
std::vector<counts> map_piece(std::string path, std::uint64_t begin, std::uint64_t end,
                              std::size_t reducers) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path);
    bool is_before = false; // in a word that began in the piece before
    if (begin > 0) {
        in.seekg(static_cast<std::streamoff>(begin - 1));
        is_before = is_letter(in.get());
    }
    std::vector<counts> out(reducers);
    std::string word;
    for (auto at = begin;; ++at) {
        const int c = in.get();
        if (is_letter(c)) {
            if (is_before) continue;
            if (word.empty() && at >= end) break;
            word += static_cast<char>(std::tolower(c));
            continue;
        }
        is_before = false;
        if (!word.empty()) ++out[reducer_of(word, reducers)][word];
        word.clear();
        if (c == EOF || at >= end) break;
    }
    return out;
}
// [/map]

// [reduce]
void rank(ranking& words, std::size_t top) {
    std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
        return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    if (words.size() > top) words.resize(top);
}

// The most frequent of one reducer's words. No other reducer has any of them.
ranking reduce(std::vector<counts> found, std::size_t top) {
    counts sums;
    for (const auto& part : found)
        for (const auto& [word, n] : part) sums[word] += n;
    ranking out(sums.begin(), sums.end());
    rank(out, top);
    return out;
}
// [/reduce]

// [job]
skein::task<ranking> count_words(std::vector<fs::path> files, std::uint64_t piece,
                                 std::size_t top) {
    constexpr std::size_t reducers = 4;
    std::vector<skein::ref<std::vector<counts>>> pieces;
    for (const auto& file : files)
        for (std::uint64_t at = 0; at < fs::file_size(file); at += piece)
            pieces.push_back(skein::remote<&map_piece>(file.string(), at, at + piece, reducers));

    // Each piece as it ends; what its words' reducers need is put together here.
    std::vector<std::vector<counts>> found(reducers);
    auto ends = skein::as_completed(std::move(pieces));
    while (true) {
        auto next = ends.next();
        auto done = co_await next;
        if (!done) break;
        auto& parts = done->value.value(); // throws if the piece could not be read
        for (std::size_t r = 0; r < reducers; ++r) found[r].push_back(std::move(parts[r]));
    }
    std::vector<skein::ref<ranking>> shares;
    for (auto& one : found) shares.push_back(skein::remote<&reduce>(std::move(one), top));
    auto together = skein::all(std::move(shares));
    ranking all;
    for (auto& share : co_await std::move(together))
        all.insert(all.end(), share.begin(), share.end());
    rank(all, top);
    co_return all;
}
// [/job]

// [app]
struct request {
    std::size_t top = 10;
    std::uint64_t piece = 1 << 20;
    std::vector<fs::path> files;
};

std::size_t number(const std::string& flag, const std::string& text) {
    std::size_t n = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (bad != std::errc() || end != text.data() + text.size() || n == 0)
        throw skein::error(skein::errc::usage, flag + " " + text + ": not a number above 0");
    return n;
}

request read_arguments(const std::vector<std::string>& args) {
    request out;
    for (std::size_t i = 0; i < args.size(); ++i) {
        const bool has_value = i + 1 < args.size();
        if (args[i] == "--top" && has_value) {
            out.top = number("--top", args[i + 1]);
            ++i;
        } else if (args[i] == "--piece" && has_value) {
            out.piece = number("--piece", args[i + 1]);
            ++i;
        } else if (args[i].starts_with("--")) {
            const bool is_known = args[i] == "--top" || args[i] == "--piece";
            throw skein::error(skein::errc::usage,
                               args[i] + (is_known ? ": a number is missing" : ": no such option"))
                .with_hint("this program has --top N, --piece BYTES and files; skein has "
                           "--workers N, --address HEAD, --head and --join HEAD");
        } else if (fs::is_directory(args[i])) {
            for (const auto& found : fs::recursive_directory_iterator(args[i]))
                if (found.is_regular_file()) out.files.push_back(fs::absolute(found.path()));
        } else {
            if (!fs::exists(args[i]))
                throw skein::error(skein::errc::not_found, "no file or folder " + args[i])
                    .with_hint("name text files or folders with some, or nothing");
            out.files.push_back(fs::absolute(args[i]));
        }
    }
    return out;
}

// Some text in a temporary folder, which goes with this object.
struct sample_files {
    fs::path folder = fs::temp_directory_path() / fmt::format("skein-words-{}", ::getpid());
    sample_files() {
        fs::create_directory(folder);
        for (int file = 1; file <= 3; ++file) {
            std::ofstream out(folder / fmt::format("{}.txt", file));
            for (int i = 0; i < 1000 * file; ++i)
                out << "A ring of ranks adds each gradient once. ";
            for (int i = 0; i < 1000; ++i) out << "The ring is a Ring of " << file << " files.\n";
        }
    }
    ~sample_files() { fs::remove_all(folder); }
    sample_files(const sample_files&) = delete;
};

skein::task<int> app(std::vector<std::string> args) {
    auto asked = read_arguments(args);
    std::optional<sample_files> own;
    if (asked.files.empty()) asked.files = read_arguments({own.emplace().folder.string()}).files;
    auto counting = count_words(asked.files, asked.piece, asked.top);
    const auto words = co_await std::move(counting);
    for (const auto& [word, n] : words) fmt::print("{:8} {}\n", n, word);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
