// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who listens in a simulated world where a head was: somebody without its token, of one kind or
// another.
//
//     test::stranger other(network, test::sim_nodes::head_address(), test::stranger::kind::http);
//     auto gone = other.end();
//     co_await gone;

#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/handshake.hpp>
#include <skein/net/stream.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace skein::test {

/// From its making to end(), on the host of its address.
class stranger {
public:
    enum class kind : std::uint8_t { other_token, older_version, http, echo, silent, closing };
    static constexpr std::uint64_t kinds = 6;

    stranger(sim::network& in, net::address at, kind what)
        : home_(in.loop_of(at.host)), secret_(net::token::generate(in.loop().random())),
          what_(what) {
        const loop::use on_its_host(home_);
        door_ = in.host(at.host).listen(at);
        serving_.spawn(serve(this));
    }
    stranger(const stranger&) = delete;
    stranger& operator=(const stranger&) = delete;

    /// Its sockets close; its address is free.
    task<void> end() {
        {
            const loop::use on_its_host(home_);
            door_->close();
            serving_.cancel();
        }
        auto joined = as_result(shield(serving_.join()));
        (void)co_await joined;
        const loop::use on_its_host(home_);
        door_.reset();
    }
    /// Who has knocked so far.
    [[nodiscard]] int asked() const noexcept { return asked_; }

private:
    static task<void> serve(stranger* self) {
        for (;;) {
            auto accepting = self->door_->accept();
            auto one = co_await accepting;
            ++self->asked_;
            self->serving_.spawn(try_answer(self, std::move(one)));
        }
    }
    static task<void> try_answer(stranger* self, std::unique_ptr<net::stream> with) {
        auto answering = as_result(answer(self, with.get()));
        (void)co_await answering; // who has dialled goes, as it likes
        with->close();
    }
    static task<void> answer(stranger* self, net::stream* with) {
        if (self->what_ == kind::closing) co_return;
        if (self->what_ == kind::other_token) {
            net::connection_options mine;
            mine.secret = self->secret_;
            auto shaking = net::handshake(*with, net::side::accepting, mine);
            (void)co_await shaking;
            co_return;
        }
        if (self->what_ == kind::older_version) {
            net::detail::hello old;
            old.fill(net::side::accepting, net::protocol_version - 1, loop::current().random());
            auto telling = net::detail::write_one(with, old.raw);
            co_await telling;
        }
        byte_buffer read(512);
        for (;;) {
            auto reading = with->read_some(read);
            const auto got = co_await reading;
            if (got == 0) co_return;
            constexpr std::string_view page =
                "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            byte_span said;
            if (self->what_ == kind::echo) said = byte_span(read).first(got);
            if (self->what_ == kind::http) said = as_bytes(page);
            if (said.empty()) continue;
            auto telling = net::detail::write_one(with, said);
            co_await telling;
            if (self->what_ == kind::http) co_return;
        }
    }

    loop& home_;
    net::token secret_;
    kind what_;
    std::unique_ptr<net::listener> door_;
    int asked_ = 0;
    scope serving_;
};

} // namespace skein::test
