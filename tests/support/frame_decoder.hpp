// SPDX-License-Identifier: Apache-2.0
#pragma once
// The format of frames once more, in the simplest way: what a connection's read path is compared
// with.

#include <skein/net/frame.hpp>

#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein_test {

using namespace skein;
using net::frame;
using net::frame_header;

/// Cuts one stream of bytes into frames: feed pieces of any size, take frames out.
class frame_decoder {
public:
    explicit frame_decoder(std::size_t max_body) : max_body_(max_body) {}

    /// Appends bytes. Memory held is what was fed and not yet taken.
    void feed(byte_span bytes) { append(buffer_, bytes); }

    /// The next whole frame, nothing if more bytes are needed, or an error (then for ever).
    [[nodiscard]] result<std::optional<frame>> next() {
        if (failure_) return *failure_;
        if (buffer_.size() - taken_ < frame_header::bytes) return std::optional<frame>();
        frame_header h;
        if ((failure_ = h.read(buffer_.data() + taken_, max_body_))) return *failure_;
        if (buffer_.size() - taken_ - frame_header::bytes < h.length) return std::optional<frame>();
        const auto body = byte_span(buffer_).subspan(taken_ + frame_header::bytes, h.length);
        if (!h.accepts(body)) {
            failure_ =
                error(errc::corrupt, fmt::format("body of frame {} (kind {}, {} bytes) with a "
                                                 "wrong checksum",
                                                 h.id, h.kind, h.length));
            return *failure_;
        }
        std::optional<frame> out(std::in_place);
        out->kind = h.kind;
        out->flags = static_cast<std::uint16_t>(h.flags & ~net::body_crc_flag);
        out->id = h.id;
        out->body = to_buffer(body);
        taken_ += frame_header::bytes + h.length;
        if (taken_ == buffer_.size() || taken_ > (std::size_t{1} << 16)) {
            buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
            taken_ = 0;
        }
        return out;
    }

private:
    std::size_t max_body_;
    byte_buffer buffer_;
    std::size_t taken_ = 0;
    std::optional<error> failure_;
};

/// Header and body as one buffer.
[[nodiscard]] inline byte_buffer encode_frame(const frame& f, bool checksum = true) {
    byte_buffer out(frame_header::bytes);
    frame_header h;
    h.length = static_cast<std::uint32_t>(f.body.size());
    h.kind = f.kind;
    h.flags = f.flags;
    h.id = f.id;
    if (checksum) {
        h.flags |= net::body_crc_flag;
        h.body_crc = crc32c(f.body);
    }
    h.encode(out.data());
    append(out, f.body);
    return out;
}

} // namespace skein_test
