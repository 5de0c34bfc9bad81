// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who is told, once, that a connection, a link or what speaks over one has ended.

#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/log.hpp>

#include <exception>
#include <utility>

namespace skein::net::detail {

class closed_news {
public:
    /// Called with why it failed; null: it has ended in order.
    using handler = unique_function<void(const error*)>;

    void set(handler to) { handler_ = std::move(to); }
    /// What the handler throws is logged.
    void tell(const error* why) noexcept {
        auto told = std::exchange(handler_, nullptr);
        if (!told) return;
        try {
            told(why);
        } catch (const std::exception& e) {
            logging::error("net", "closed handler failed", {{"what", text_of(e)}});
        }
    }

private:
    handler handler_;
};

} // namespace skein::net::detail
