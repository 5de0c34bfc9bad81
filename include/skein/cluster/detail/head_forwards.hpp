// SPDX-License-Identifier: Apache-2.0
#pragma once
// A head's side of cluster/page_forward.hpp: connections of browsers that come over one link.
//
//     page_forwards forwards;
//     forwards.serve(service, weak, [] { return web; });
//     auto ending = forwards.end();                      // before it is destroyed

#include <skein/cluster/detail/forward_messages.hpp>
#include <skein/cluster/detail/forwarded_stream.hpp>
#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::size_t most_forwards = 32; ///< over one link

/// Of one link. Belongs to one loop.
class page_forwards {
public:
    using page_of = std::function<std::shared_ptr<head_web>()>; ///< nullptr: there is none

    /// Answers who opens some, as long as this object is there.
    static void serve(net::request_service& service, const std::weak_ptr<page_forwards>& these,
                      const page_of& page) {
        const auto here = [these](const net::caller& who) {
            auto out = these.lock();
            if (out == nullptr) throw error(errc::closed, who.peer + " has gone");
            return out;
        };
        service.on<open_forward, forward_opened>(
            [here, page](open_forward m, const net::caller& who) {
                check_version(m.version, who.peer);
                return open(here(who), page(), who.peer);
            });
        service.on<forward_bytes, forward_taken>([here](forward_bytes m, const net::caller& who) {
            return put(here(who)->at(m.forward), std::move(m));
        });
        service.on<take_forwarded, forwarded>([here](take_forwarded m, const net::caller& who) {
            return take(here(who)->at(m.forward));
        });
    }
    /// Ends all of them.
    [[nodiscard]] task<void> end() { return end_all(this); }

private:
    using bytes_ptr = std::shared_ptr<forwarded_bytes>;

    [[nodiscard]] bytes_ptr at(std::uint32_t number) const {
        const auto found = open_.find(number);
        if (found == open_.end()) throw error(errc::closed, "that forward has ended");
        return found->second;
    }
    static task<forward_opened> open(std::shared_ptr<page_forwards> self,
                                     std::shared_ptr<head_web> web, std::string peer) {
        if (web == nullptr)
            throw error(errc::not_supported, "not supported: this head answers no browsers")
                .with_hint("the program skein does, when it was built with Boost");
        if (self->open_.size() >= most_forwards)
            throw error(errc::exhausted, fmt::format("{} forwards over one link", most_forwards));
        const auto bytes = std::make_shared<forwarded_bytes>();
        forward_opened out;
        out.forward = ++self->last_;
        self->open_.emplace(out.forward, bytes);
        self->serving_.spawn(serve_one(self.get(), std::move(web), bytes, std::move(peer)));
        co_return out;
    }
    /// The far end may still take what was written last.
    static task<void> serve_one(page_forwards* self, std::shared_ptr<head_web> web, bytes_ptr bytes,
                                std::string peer) {
        auto serving = as_result(
            web->serve(std::make_unique<forwarded_stream>(bytes, std::move(peer)), {}, nullptr));
        (void)co_await serving;
        bytes->close();
        (void)self;
    }
    static task<forward_taken> put(bytes_ptr bytes, forward_bytes m) {
        if (!m.bytes.empty()) {
            auto putting = forwarded_bytes::put(bytes, std::move(m.bytes));
            co_await putting;
        }
        if (m.ends) bytes->end_input();
        co_return forward_taken();
    }
    static task<forwarded> take(bytes_ptr bytes) {
        auto taking = forwarded_bytes::take(std::move(bytes));
        forwarded out;
        out.bytes = co_await taking;
        co_return out;
    }
    static task<void> end_all(page_forwards* self) {
        for (const auto& [number, bytes] : self->open_) bytes->close();
        self->serving_.cancel();
        auto joining = as_result(self->serving_.join());
        (void)co_await joining;
        self->open_.clear();
    }

    std::map<std::uint32_t, bytes_ptr> open_;
    std::uint32_t last_ = 0;
    scope serving_;
};

} // namespace skein::cluster::detail
