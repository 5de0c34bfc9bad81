// SPDX-License-Identifier: Apache-2.0
#pragma once
// A register: its keys over libcurl, and what becomes of a lease when it ends.

#include <skein/core/loop.hpp>
#include <skein/spmd/detail/curl_transport.hpp>
#include <skein/spmd/detail/etcd_client.hpp>
#include <skein/spmd/detail/etcd_keys.hpp>

#include <utility>

namespace skein::spmd {

namespace detail {

[[nodiscard]] SKEIN_INLINE std::shared_ptr<etcd_keys> make_etcd_keys(etcd_options options) {
    options = checked(std::move(options));
    auto transport =
        std::make_unique<curl_transport>(curl_files{options.ca, options.cert, options.key});
    return std::make_shared<etcd_keys>(std::move(options), std::move(transport));
}

/// Outlives the register: it has its own share of the keys.
SKEIN_INLINE task<void> close_etcd_keys(std::shared_ptr<etcd_keys> keys) {
    auto closing = keys->close();
    co_await closing;
}

} // namespace detail

SKEIN_INLINE etcd_register::etcd_register(etcd_options options)
    : keys_(detail::make_etcd_keys(std::move(options))) {}

SKEIN_INLINE etcd_register::etcd_register(etcd_options options,
                                          std::unique_ptr<detail::etcd_transport> transport)
    : keys_(std::make_shared<detail::etcd_keys>(detail::checked(std::move(options)),
                                                std::move(transport))) {}

SKEIN_INLINE etcd_register::~etcd_register() {
    if (auto* const here = loop::try_current(); here != nullptr && keys_->is_keeping())
        here->adopt(detail::close_etcd_keys(keys_));
}

SKEIN_INLINE task<view> etcd_register::read() { return keys_->read(); }
SKEIN_INLINE task<swap_result> etcd_register::compare_and_swap(std::uint64_t generation,
                                                               view next) {
    return keys_->compare_and_swap(generation, std::move(next));
}
SKEIN_INLINE task<view> etcd_register::watch(std::uint64_t after) { return keys_->watch(after); }
SKEIN_INLINE task<coordinator_place> etcd_register::claim(coordinator_place me) {
    return keys_->claim(std::move(me));
}
SKEIN_INLINE task<coordinator_place> etcd_register::watch_coordinator(coordinator_place known) {
    return keys_->watch_coordinator(std::move(known));
}
SKEIN_INLINE task<void> etcd_register::resign() { return keys_->resign(); }

} // namespace skein::spmd
