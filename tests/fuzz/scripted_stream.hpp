// SPDX-License-Identifier: Apache-2.0
#pragma once
// The peer of a fuzz target: says the fuzzer's bytes and hears nothing.

#include <skein/core/sleep.hpp>
#include <skein/net/stream.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace skein::fuzz {

/// Gives bytes in pieces of at most `step`, then, `before_end` later, the end; swallows ours.
class scripted_stream final : public net::stream {
public:
    explicit scripted_stream(byte_buffer bytes, duration before_end = {},
                             std::size_t step = std::numeric_limits<std::size_t>::max())
        : bytes_(std::move(bytes)), before_end_(before_end), step_(step) {}

    task<std::size_t> read_some(mut_byte_span into) override {
        if (at_ == bytes_.size() && before_end_ > duration::zero()) {
            auto pause = sleep_for(before_end_);
            co_await pause;
        }
        co_return *try_read(into);
    }
    task<void> write_all(std::span<const byte_span>) override { co_return; }
    std::optional<std::size_t> try_read(mut_byte_span into) override {
        const std::size_t n = std::min({into.size(), step_, bytes_.size() - at_});
        std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), n, into.begin());
        at_ += n;
        return n;
    }
    std::size_t try_write(std::span<const byte_span> batch) override {
        std::size_t n = 0;
        for (const auto& part : batch) n += part.size();
        return n;
    }
    void close_send() noexcept override {}
    void close() noexcept override {}
    std::string peer_name() const override { return "fuzzer"; }

private:
    byte_buffer bytes_;
    duration before_end_;
    std::size_t step_, at_ = 0;
};

} // namespace skein::fuzz
