// SPDX-License-Identifier: Apache-2.0
#pragma once
// Any text file or folder as training data: bytes in, windows of bytes out.
//
// Every tenth block of the text is held out for validation; windows do not overlap. The baseline is a
// byte-bigram model with add-one smoothing, trained and measured on the very same two parts.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace gpt {

namespace fs = std::filesystem;

/// The headers of the newest C++ standard library on this machine, or nothing.
inline std::string default_text() {
    std::error_code ignored;
    std::string newest;
    int best = -1;
    for (const auto& entry : fs::directory_iterator("/usr/include/c++", ignored)) {
        int version = 0;
        for (char c : entry.path().filename().string()) {
            if (c < '0' || c > '9') break;
            version = version * 10 + (c - '0');
        }
        if (fs::exists(entry.path() / "vector", ignored) && version > best) {
            best = version;
            newest = entry.path().string();
        }
    }
    return newest;
}

/// All bytes of a file, or of every regular file below a folder in the order of their paths, up to a
/// limit. Files with a zero byte near their start are not text and are left out of a folder.
inline std::string read_text(const std::string& path, std::size_t max_bytes) {
    using skein::errc;
    using skein::error;
    std::error_code failed;
    const auto status = fs::status(path, failed);
    if (!fs::exists(status))
        throw error(errc::usage, fmt::format("no such text: {}", path))
            .with_hint("give a file or a folder with --text");
    if (!fs::is_directory(status) && !fs::is_regular_file(status)) // every rank reads it
        throw error(errc::usage, fmt::format("{} is neither a file nor a folder", path))
            .with_hint("write a pipe's text into a file first");
    std::vector<std::string> files;
    if (fs::is_directory(status)) {
        const auto skip = fs::directory_options::skip_permission_denied;
        for (const auto& entry : fs::recursive_directory_iterator(path, skip, failed))
            if (entry.is_regular_file(failed)) files.push_back(entry.path().string());
        std::sort(files.begin(), files.end());
    } else {
        files.push_back(path);
    }
    std::string text;
    for (const auto& name : files) {
        if (text.size() >= max_bytes) break;
        std::ifstream in(name, std::ios::binary);
        if (!in && files.size() == 1)
            throw error(errc::permission_denied, fmt::format("cannot read {}", name))
                .with_hint("check its permissions");
        const auto begin = text.size();
        std::array<char, 65536> piece;
        while (text.size() < max_bytes && (in.read(piece.data(), piece.size()), in.gcount() > 0)) {
            text.append(piece.data(), std::min<std::size_t>(in.gcount(), max_bytes - text.size()));
            const bool binary = std::string_view(text).substr(begin, 4096).find('\0') != text.npos;
            if (binary && files.size() > 1) {
                text.resize(begin);
                break;
            }
        }
    }
    if (text.empty())
        throw error(errc::usage, fmt::format("{} has no text in it", path))
            .with_hint("give a file or a folder with some text");
    return text;
}

/// The two parts of a text.
struct split_text {
    std::string train, held_out;
};

/// Every tenth block goes to the held-out part; blocks are 16 KiB, less for short texts.
inline split_text split(const std::string& text, std::int64_t context, const std::string& name) {
    const auto window = static_cast<std::size_t>(context) + 1;
    if (text.size() < 2 * window)
        throw skein::error(skein::errc::usage,
                           fmt::format("{} has {} bytes, training with a context of {} needs {}",
                                       name, text.size(), context, 2 * window))
            .with_hint("give more text or a smaller --context");
    const auto block = std::clamp<std::size_t>(text.size() / 20, window, 16384);
    const auto blocks = text.size() / block; // at least 2; the last one takes the rest
    const std::size_t every = std::min<std::size_t>(10, blocks);
    split_text parts;
    for (std::size_t b = 0; b < blocks; ++b) {
        const auto size = b + 1 == blocks ? std::string::npos : block;
        (b % every == every - 1 ? parts.held_out : parts.train) += text.substr(b * block, size);
    }
    return parts;
}

/// At most 32 bytes of the first line of a text that has some, to go on from. Held-out text begins in
/// the middle of a line, which is passed over.
inline std::string opening(std::string_view text) {
    std::string best;
    const auto half = text.find('\n');
    if (half != text.npos && half + 1 < text.size()) text.remove_prefix(half + 1);
    while (!text.empty() && best.size() < 12) {
        const auto end = std::min(text.find('\n'), text.size());
        auto line = text.substr(0, end);
        line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
        line = line.substr(0, 32);
        line = line.substr(0, line.find_last_not_of(" \t\r") + 1); // npos + 1 is 0
        if (line.size() > best.size()) best = line;
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return best.empty() ? "\n" : best;
}

/// One batch: inputs and the bytes that follow them.
struct text_batch {
    torch::Tensor inputs_BT, targets_BT; // B samples, T bytes of context; int64
};

/// Windows of a text that lives as long as this. Sample i covers bytes [i * T, i * T + T].
class windows {
public:
    windows(std::string_view text, std::int64_t context) : text_(text), context_(context) {}

    [[nodiscard]] std::uint64_t size() const noexcept {
        return text_.empty() ? 0 : (text_.size() - 1) / static_cast<std::uint64_t>(context_);
    }
    [[nodiscard]] text_batch batch(std::span<const std::uint64_t> ids) const {
        const auto samples = static_cast<std::int64_t>(ids.size());
        text_batch out{torch::empty({samples, context_}, torch::kLong),
                       torch::empty({samples, context_}, torch::kLong)};
        auto* input = out.inputs_BT.mutable_data_ptr<std::int64_t>();
        auto* target = out.targets_BT.mutable_data_ptr<std::int64_t>();
        for (const auto id : ids) {
            const auto* from = text_.data() + id * static_cast<std::uint64_t>(context_);
            for (std::int64_t t = 0; t < context_; ++t) {
                *input++ = static_cast<unsigned char>(from[t]);
                *target++ = static_cast<unsigned char>(from[t + 1]);
            }
        }
        return out;
    }

private:
    std::string_view text_;
    std::int64_t context_;
};

/// Mean negative log likelihood, in nats per byte, of `held_out` under a byte-bigram model of `train`
/// with add-one smoothing.
inline double bigram_nats(std::string_view train, std::string_view held_out) {
    std::vector<double> count(256 * 256, 1.0), total(256, 256.0);
    const auto at = [](std::string_view s, std::size_t i) {
        return static_cast<unsigned char>(s[i]);
    };
    for (std::size_t i = 0; i + 1 < train.size(); ++i) {
        count[at(train, i) * 256u + at(train, i + 1)] += 1;
        total[at(train, i)] += 1;
    }
    double nats = 0;
    for (std::size_t i = 0; i + 1 < held_out.size(); ++i)
        nats -=
            std::log(count[at(held_out, i) * 256u + at(held_out, i + 1)] / total[at(held_out, i)]);
    return held_out.size() < 2 ? 0.0 : nats / static_cast<double>(held_out.size() - 1);
}

/// The text with a dot for every byte that a terminal could not show: control bytes but newline and tab,
/// and bytes that are not part of a whole UTF-8 sequence.
inline std::string printable(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t length = lead < 0x80                   ? 1
                                   : lead >= 0xc2 && lead < 0xe0 ? 2
                                   : lead >= 0xe0 && lead < 0xf0 ? 3
                                   : lead >= 0xf0 && lead < 0xf5 ? 4
                                                                 : 0;
        bool good = length > 0 && i + length <= text.size();
        for (std::size_t k = 1; good && k < length; ++k)
            good = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
        if (length == 1) good = lead == '\n' || lead == '\t' || (lead >= 0x20 && lead < 0x7f);
        out += good ? text.substr(i, length) : std::string_view(".");
        i += good ? length : 1;
    }
    return out;
}

} // namespace gpt
