// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stream that travels inside of a link: its bytes are put and taken by messages. What reads and
// writes it here sees a process of this host, for who sent them has proven the cluster's token.
//
//     auto bytes = std::make_shared<forwarded_bytes>();
//     auto serving = web.serve(std::make_unique<forwarded_stream>(bytes, "a browser"), {}, nullptr);
//     bytes->put(...);                          // from its far end
//     auto taking = bytes->take(bytes);         // for that; empty: it has ended

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/net/stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace skein::cluster::detail {

inline constexpr std::size_t most_forwarded = std::size_t{256} << 10; ///< each way, not yet taken

/// What a stream and its far end share. Belongs to one loop.
class forwarded_bytes {
public:
    // ---- the far end
    /// Bytes for who reads the stream; waits for room.
    ///   errors  closed: nobody reads any more; too_large
    [[nodiscard]] static task<void> put(std::shared_ptr<forwarded_bytes> self, byte_buffer bytes) {
        if (bytes.size() > most_forwarded)
            throw error(errc::too_large, "more bytes at once than are forwarded");
        while (!self->is_closed_ && self->in_.size() > most_forwarded - bytes.size()) {
            self->taken_.reset();
            co_await self->taken_.wait();
        }
        if (self->is_closed_) throw error(errc::closed, "the other end of the forward was closed");
        self->in_.insert(self->in_.end(), bytes.begin(), bytes.end());
        self->came_.set();
    }
    /// No more come.
    void end_input() noexcept {
        in_ends_ = true;
        came_.set();
    }
    /// What was written; waits for some. Empty: that was all.
    [[nodiscard]] static task<byte_buffer> take(std::shared_ptr<forwarded_bytes> self) {
        while (self->out_.empty() && !self->out_ends_) {
            self->written_.reset();
            co_await self->written_.wait();
        }
        auto out = std::exchange(self->out_, {});
        self->sent_.set();
        co_return out;
    }
    /// Ends both ways.
    void close() noexcept {
        is_closed_ = in_ends_ = out_ends_ = true;
        for (auto* each : {&came_, &taken_, &written_, &sent_}) each->set();
    }

private:
    friend class forwarded_stream;
    byte_buffer in_, out_;
    bool in_ends_ = false, out_ends_ = false, is_closed_ = false;
    event came_, taken_, written_, sent_;
};

/// The near end.
class forwarded_stream final : public net::stream {
public:
    forwarded_stream(std::shared_ptr<forwarded_bytes> bytes, std::string peer)
        : bytes_(std::move(bytes)), peer_(std::move(peer)) {}
    ~forwarded_stream() override { bytes_->close(); }

    task<std::size_t> read_some(mut_byte_span into) override { return read(bytes_, into); }
    task<void> write_all(std::span<const byte_span> batch) override { return write(bytes_, batch); }
    std::optional<std::size_t> try_read(mut_byte_span into) override {
        auto& b = *bytes_;
        if (b.in_.empty()) return b.in_ends_ ? std::optional<std::size_t>(0) : std::nullopt;
        const auto n = std::min(into.size(), b.in_.size());
        std::copy_n(b.in_.begin(), n, into.begin());
        b.in_.erase(b.in_.begin(), b.in_.begin() + static_cast<std::ptrdiff_t>(n));
        b.taken_.set();
        return n;
    }
    std::size_t try_write(std::span<const byte_span> batch) override {
        auto& b = *bytes_;
        std::size_t done = 0;
        for (const auto part : batch) {
            const auto room = b.out_.size() < most_forwarded ? most_forwarded - b.out_.size() : 0;
            const auto n = b.out_ends_ ? 0 : std::min(part.size(), room);
            b.out_.insert(b.out_.end(), part.begin(),
                          part.begin() + static_cast<std::ptrdiff_t>(n));
            done += n;
            if (n < part.size()) break;
        }
        if (done != 0) b.written_.set();
        return done;
    }
    void close_send() noexcept override {
        bytes_->out_ends_ = true;
        bytes_->written_.set();
    }
    void close() noexcept override { bytes_->close(); }
    [[nodiscard]] std::string peer_name() const override { return peer_; }
    [[nodiscard]] bool is_local() const noexcept override { return true; }

private:
    static task<std::size_t> read(std::shared_ptr<forwarded_bytes> b, mut_byte_span into) {
        if (into.empty()) co_return 0;
        while (b->in_.empty() && !b->in_ends_) {
            b->came_.reset();
            co_await b->came_.wait();
        }
        const auto n = std::min(into.size(), b->in_.size());
        std::copy_n(b->in_.begin(), n, into.begin());
        b->in_.erase(b->in_.begin(), b->in_.begin() + static_cast<std::ptrdiff_t>(n));
        b->taken_.set();
        if (n == 0 && b->is_closed_) throw error(errc::closed, "the forward was closed");
        co_return n;
    }
    static task<void> write(std::shared_ptr<forwarded_bytes> b, std::span<const byte_span> batch) {
        for (auto part : batch) {
            while (!part.empty()) {
                while (b->out_.size() >= most_forwarded && !b->out_ends_) {
                    b->sent_.reset();
                    co_await b->sent_.wait();
                }
                if (b->out_ends_) throw error(errc::closed, "the forward was closed");
                const auto n = std::min(part.size(), most_forwarded - b->out_.size());
                b->out_.insert(b->out_.end(), part.begin(),
                               part.begin() + static_cast<std::ptrdiff_t>(n));
                part = part.subspan(n);
                b->written_.set();
            }
        }
    }

    std::shared_ptr<forwarded_bytes> bytes_;
    std::string peer_;
};

} // namespace skein::cluster::detail
