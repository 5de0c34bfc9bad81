// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/head_keys.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_keys.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/error.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE net::connection_options head_keys::door() const {
    const auto& how = of_->how;
    if (how.secret.is_derived())
        throw error(errc::permission_denied,
                    fmt::format("a head needs the cluster's token, and has {}",
                                net::to_string(how.secret.name().kind)))
            .with_hint("name the token's file with --token-file, or leave it out");
    auto out = cluster_link(how.secret, how.name, how.host, how.pid);
    out.admits = [mine = *this](const net::key_name& key) { return why_shut_out(mine, key); };
    return out;
}

SKEIN_INLINE net::request_service::gate head_keys::gate(net::key_name key,
                                                        std::uint64_t incarnation) const {
    return [mine = *this, key, incarnation](std::uint16_t number, byte_span body) {
        return rights_gate(mine, key, incarnation).check(number, body);
    };
}

SKEIN_INLINE byte_buffer head_keys::space_secret_for(std::uint64_t driver,
                                                     std::uint64_t server) const {
    const auto& token = of_->how.secret;
    const auto by = token.derive(of_->drivers.at(driver)->key);
    return sealed(by, sealed_space, server, space_secret(token, server).bytes());
}

SKEIN_INLINE void head_keys::end_shut_out(head::state& of) {
    const auto now = of.on_loop.now();
    const head_keys mine(of);
    std::vector<std::pair<head::state::session_ptr, error>> late;
    for (const auto& [number, d] : of.drivers) {
        if (d->session == nullptr || d->key.kind != net::key_kind::attempt) continue;
        auto why = why_shut_out(mine, d->key);
        if (!why) continue;
        if (d->shut_out_at == time_point{})
            d->shut_out_at = deadline_after(now, of.how.driver_grace);
        if (now >= d->shut_out_at) late.emplace_back(d->session, std::move(*why));
    }
    for (auto& [session, why] : late) session->below->abort(std::move(why));
}

SKEIN_INLINE std::string head_keys::job_of_attempt(std::uint64_t attempt) const {
    const auto* const l = of_->leases.find({attempt, entry_lease});
    if (l == nullptr || l->of->attempt_of.empty()) return {};
    const auto job = of_->jobs.find(l->of->attempt_of);
    if (job == nullptr || job->lease_of != attempt || is_over(job->state)) return {};
    return job->what.id;
}

SKEIN_INLINE std::string head_keys::fate_of_attempt(std::uint64_t attempt) const {
    for (const auto& [id, job] : of_->jobs.all())
        if (job->lease_of == attempt)
            return fmt::format("attempt {} of job {} has ended", job->attempt, id);
    return "it is of an attempt that has ended, or that this head does not know";
}

SKEIN_INLINE std::optional<net::key_name> head_keys::key_of(std::uint64_t driver) const {
    const auto found = of_->drivers.find(driver);
    if (found == of_->drivers.end()) return std::nullopt;
    const auto& d = *found->second;
    if (!d.holder->attempt_of.empty()) return net::key_name{net::key_kind::attempt, 0}; // nobody's
    if (!d.has_come() && d.key == net::key_name()) return std::nullopt; // of a head before this one
    return d.key;
}

SKEIN_INLINE std::string head_keys::space_of(std::uint64_t driver) const {
    return of_->spaces.name_of(driver);
}

SKEIN_INLINE bool head_keys::has_begun(const std::string& job, const std::string& space) const {
    return std::any_of(of_->drivers.begin(), of_->drivers.end(), [&](const auto& one) {
        return one.second->begun_by == job && of_->spaces.name_of(one.first) == space;
    });
}

} // namespace skein::cluster::detail
