// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much peers may have in progress at the request services of a process: counted for each peer
// and over all, so that one which asks without end, or does not read its replies, takes nothing
// from the others.
//
//     auto budget = std::make_shared<net::request_budget>();      // shared by services
//     auto service = std::make_shared<net::request_service>(bounds, budget);
//     budget->held().running                                      // handlers, of all peers
//
// What is over a bound is refused with errc::exhausted, which names the bound and the peer. It does
// not wait: replies, cancellations and confirmations come over the same connection, so a side that
// stopped reading could wait for ever. Links of one incarnation are one peer; each plain connection
// is one.

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace skein::net {

/// What is in progress, or may be: of one peer, or of all.
struct request_load {
    std::size_t running = 0;          ///< handlers
    std::size_t request_bytes = 0;    ///< encoded, of the requests that they work on
    std::size_t assembling_bytes = 0; ///< of large messages that have come in part
    std::size_t reply_bytes = 0;      ///< encoded, of large replies that wait for the network

    friend bool operator==(const request_load&, const request_load&) = default;
};

/// Counts what peers have in progress. One loop.
class request_budget {
public:
    /// `most`: of all peers together.
    explicit request_budget(request_load most = most_by_default()) : most_(most) {}
    request_budget(const request_budget&) = delete;
    request_budget& operator=(const request_budget&) = delete;

    /// 65,536 handlers, and 4 GiB of each kind of bytes.
    [[nodiscard]] static constexpr request_load most_by_default() noexcept {
        constexpr std::size_t bytes = std::size_t{4} << 30;
        return {65'536, bytes, bytes, bytes};
    }

    [[nodiscard]] const request_load& most() const noexcept { return most_; }
    /// Of all peers.
    [[nodiscard]] const request_load& held() const noexcept { return held_; }
    /// The count of one peer, shared by its links; incarnation 0: one of its own.
    [[nodiscard]] std::shared_ptr<request_load> share_of(std::uint64_t incarnation);

private:
    friend class request_hold;
    request_load most_, held_;
    std::map<std::uint64_t, std::weak_ptr<request_load>> peers_;
    std::size_t sweep_at_ = 64;
};

/// Something that is in progress for a peer: counted as long as it lives.
class request_hold {
public:
    using field = std::size_t request_load::*;

    request_hold() = default;
    request_hold(std::shared_ptr<request_budget> budget, std::shared_ptr<request_load> peer,
                 field what) noexcept
        : budget_(std::move(budget)), peer_(std::move(peer)), what_(what) {}
    request_hold(request_hold&& other) noexcept
        : budget_(std::move(other.budget_)), peer_(std::move(other.peer_)), what_(other.what_),
          amount_(std::exchange(other.amount_, 0)) {}
    request_hold& operator=(request_hold&& other) noexcept {
        if (this == &other) return *this;
        drop();
        budget_ = std::move(other.budget_);
        peer_ = std::move(other.peer_);
        what_ = other.what_;
        amount_ = std::exchange(other.amount_, 0);
        return *this;
    }
    ~request_hold() { drop(); }

    void add(std::size_t amount) noexcept {
        amount_ += amount;
        peer_.get()->*what_ += amount;
        budget_->held_.*what_ += amount;
    }
    void drop() noexcept {
        if (amount_ == 0) return;
        peer_.get()->*what_ -= amount_;
        budget_->held_.*what_ -= amount_;
        amount_ = 0;
    }
    [[nodiscard]] std::size_t amount() const noexcept { return amount_; }

private:
    std::shared_ptr<request_budget> budget_;
    std::shared_ptr<request_load> peer_;
    field what_ = &request_load::running;
    std::size_t amount_ = 0;
};

/// Why `amount` more of one kind is over the budget beside `held`, which is of the peer or of all;
/// nothing: it does. `alone`: one that is larger than the bound is taken where nothing else is
/// held.
///   errors  exhausted, which names bound and peer
[[nodiscard]] std::optional<error> over_budget(request_hold::field what, std::size_t amount,
                                               const request_load& most, const request_load& held,
                                               bool of_all, std::string_view peer, bool alone);

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/request_budget.ipp>
#endif
