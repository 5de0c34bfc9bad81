// SPDX-License-Identifier: Apache-2.0
#pragma once
// A link whose other end is the test: keeps what is sent, and whether anything is read.

#include <skein/net/channel.hpp>
#include <skein/rt/detail/peer.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rt_test {

using namespace skein;

class fake_channel final : public net::channel {
public:
    [[nodiscard]] const net::identity& peer() const noexcept override { return who_; }
    [[nodiscard]] const std::string& peer_name() const noexcept override { return who_.name; }
    [[nodiscard]] const std::string& peer_host() const noexcept override { return who_.host; }
    void send(net::frame f) override { sent.push_back(std::move(f)); }
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body) override {
        net::frame f;
        f.kind = kind;
        f.flags = flags;
        f.id = id;
        f.body = to_buffer(head);
        append(f.body, body);
        sent.push_back(std::move(f));
    }
    void flush() noexcept override {}
    void set_handler(unique_function<void(const net::frame_view&)>) override {}
    void set_closed_handler(unique_function<void(const error*)>) override {}
    void pause_reading() noexcept override { is_read = false; }
    void resume_reading() noexcept override { is_read = true; }
    task<void> close() override {
        is_up = false;
        co_return;
    }
    void abort(error) noexcept override { is_up = false; }
    task<void> wait_closed() override { co_return; }
    [[nodiscard]] bool is_open() const noexcept override { return is_up; }
    [[nodiscard]] bool is_connected() const noexcept override { return is_up; }

    std::vector<net::frame> sent;
    bool is_read = true;
    bool is_up = true;

private:
    net::identity who_;
};

/// A peer behind such a link.
struct far_end {
    std::shared_ptr<fake_channel> wire = std::make_shared<fake_channel>();
    std::shared_ptr<rt::peer> peer = std::make_shared<rt::peer>();
    [[nodiscard]] std::vector<net::frame>& sent() const { return wire->sent; }
};

inline far_end peer_at(rt::detail::peer_role role, std::uint64_t incarnation = 1) {
    far_end made;
    made.peer->wire = made.wire;
    made.peer->role = role;
    made.peer->who = "the test";
    made.peer->incarnation = incarnation;
    return made;
}

} // namespace rt_test
