// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two keys of a job in etcd, and the lease under which one of them is held.

#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/spmd/detail/etcd_client.hpp>
#include <skein/spmd/etcd_register.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::spmd::detail {

/// What an etcd_register is made of; outlives it until its lease is given back.
class etcd_keys {
public:
    etcd_keys(etcd_options options, std::unique_ptr<etcd_transport> transport);

    [[nodiscard]] task<view> read();
    [[nodiscard]] task<swap_result> compare_and_swap(std::uint64_t generation, view next);
    [[nodiscard]] task<view> watch(std::uint64_t after);
    [[nodiscard]] task<coordinator_place> claim(coordinator_place me);
    [[nodiscard]] task<coordinator_place> watch_coordinator(coordinator_place known);
    [[nodiscard]] task<void> resign();
    /// The end of the register: the lease is kept no more, and the lease is given back, if one try
    /// does.
    [[nodiscard]] task<void> close();
    /// A lease, or the end of one, is somebody's to look after.
    [[nodiscard]] bool is_keeping() const noexcept { return keeping_ != nullptr; }

private:
    /// A key's value, and the revision of etcd at which it was so.
    struct seen {
        etcd_value kv;
        std::int64_t revision = 0;
    };
    using judge = unique_function<bool(const etcd_value&)>;

    [[nodiscard]] task<seen> get(std::string key);
    /// Until `is_news` says so of the key's value; gives that.
    [[nodiscard]] task<etcd_value> await_change(std::string key, judge is_news);
    /// One watch from behind a revision; the value that is news, if there is one.
    [[nodiscard]] task<bool> listen(std::string key, std::int64_t from, judge* is_news,
                                    std::optional<etcd_value>* news);
    /// The place put under the lease, over the key of that revision; false: it was not.
    [[nodiscard]] task<bool> put_place(coordinator_place me, std::int64_t over);
    [[nodiscard]] task<coordinator_place> take_place(coordinator_place me);
    [[nodiscard]] task<void> take_lease();
    [[nodiscard]] task<void> keep_lease(std::int64_t lease, std::int64_t ttl);
    [[nodiscard]] task<void> drop_lease();
    [[nodiscard]] task<void> stop_keeping();

    [[nodiscard]] stored_view view_of(const etcd_value& kv);
    [[nodiscard]] coordinator_place place_of(const etcd_value& kv) const;
    [[nodiscard]] error unreadable(const std::string& key, const error& why) const;

    etcd_client client_;
    const std::string view_key_, coordinator_key_;
    std::uint64_t newest_ = 0; ///< generation that was seen here
    bool said_older_ = false;
    std::int64_t lease_ = 0; ///< 0: none
    std::int64_t ttl_ = 0;   ///< seconds, of it
    bool holds_ = false;     ///< the place is this register's
    std::unique_ptr<scope> keeping_;
};

} // namespace skein::spmd::detail

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/etcd_keys.ipp>
#endif
