// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a connection and a link have in common, for code that does not care which of them it has:
// messages to one authenticated peer, in order, each at most once.
//
//     void greet(net::channel& to) { to.send(7, 0, id, head, body); }
//
// A connection ends when it breaks. A link may live on: it is open, and takes messages, while
// is_connected() is false.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/options.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace skein::net {

/// One end. Belongs to one loop; share it by shared_ptr. Every member does what that of
/// net::connection or net::link says.
class channel {
public:
    using handle = std::shared_ptr<channel>;

    channel(const channel&) = delete;
    channel& operator=(const channel&) = delete;
    virtual ~channel() = default;

    [[nodiscard]] virtual const identity& peer() const noexcept = 0;
    [[nodiscard]] virtual const std::string& peer_name() const noexcept = 0;
    [[nodiscard]] virtual const std::string& peer_host() const noexcept = 0;

    virtual void send(frame f) = 0;
    virtual void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
                      byte_span body = {}) = 0;
    virtual void flush() noexcept = 0;

    virtual void set_handler(unique_function<void(const frame_view&)> handler) = 0;
    virtual void set_closed_handler(unique_function<void(const error*)> handler) = 0;
    virtual void pause_reading() noexcept = 0;
    virtual void resume_reading() noexcept = 0;

    virtual task<void> close() = 0;
    virtual void abort(error why) noexcept = 0;
    virtual task<void> wait_closed() = 0;

    /// Takes messages.
    [[nodiscard]] virtual bool is_open() const noexcept = 0;
    /// A connection is there that can carry them.
    [[nodiscard]] virtual bool is_connected() const noexcept = 0;

protected:
    channel() = default;
};

} // namespace skein::net
