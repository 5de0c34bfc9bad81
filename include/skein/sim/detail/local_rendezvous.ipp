// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members of a local_world, and how they meet.

#include <skein/core/check.hpp>

#include <utility>

#include <fmt/core.h>

namespace skein::sim {

class local_world::member final : public spmd::rendezvous {
public:
    member(local_world& world, int rank) : world_(world), rank_(rank) {}
    int rank() const override { return rank_; }
    int world_size() const override { return world_.size(); }
    int local_rank() const override { return count(rank_); }
    int local_size() const override { return count(world_.size()); }
    int generation() const override { return 0; }
    std::string host() const override { return world_.hosts_[checked(rank_)]; }
    net::token secret() const override { return world_.secret_; }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        return world_.exchange(std::string(key), rank_, mine);
    }
    spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
        return losses_.add(std::move(lost));
    }
    void tell(int who, const error& why) {
        if (who != rank_) losses_.tell(who, why);
    }

private:
    int count(int up_to) const {
        int same = 0;
        for (int r = 0; r < up_to; ++r) same += world_.hosts_[checked(r)] == host() ? 1 : 0;
        return same;
    }
    local_world& world_;
    int rank_;
    spmd::loss_listeners losses_;
};

SKEIN_INLINE local_world::local_world(int size)
    : local_world(std::vector<std::string>(checked(size), "localhost")) {}
SKEIN_INLINE local_world::local_world(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {
    for (std::size_t r = 0; r < hosts_.size(); ++r) {
        members_.push_back(std::make_unique<member>(*this, static_cast<int>(r)));
    }
}
SKEIN_INLINE local_world::~local_world() = default;

SKEIN_INLINE spmd::rendezvous& local_world::at(int rank) { return *members_.at(checked(rank)); }

SKEIN_INLINE void local_world::lose(int rank, error why) {
    {
        const std::lock_guard lock(guard_);
        if (lost_) return;
        lost_.emplace(rank, why);
    }
    arrived_.notify_all();
    for (auto& m : members_) m->tell(rank, why);
}

SKEIN_INLINE std::size_t local_world::checked(int n) {
    SKEIN_CHECK(n >= 0, "{} ranks", n);
    return static_cast<std::size_t>(n);
}

SKEIN_INLINE std::vector<byte_buffer> local_world::exchange(std::string key, int rank,
                                                            byte_span mine) {
    std::unique_lock lock(guard_);
    auto& t = tables_[key];
    t.blobs.resize(hosts_.size());
    t.there.resize(hosts_.size());
    SKEIN_CHECK(!t.there[checked(rank)], "rank {} exchanges the key {} twice", rank, key);
    t.blobs[checked(rank)] = to_buffer(mine);
    t.there[checked(rank)] = true;
    ++t.came;
    arrived_.notify_all();
    const auto all_here = [&] { return lost_ || t.came == size(); };
    if (!arrived_.wait_for(lock, std::min<duration>(deadline_, std::chrono::hours(24 * 365)),
                           all_here)) {
        std::string missing;
        for (int r = 0; r < size(); ++r) {
            if (!t.there[checked(r)]) missing += fmt::format(" {}", r);
        }
        throw error(errc::timeout, fmt::format("exchange {}: no word from rank{} within {:.3g} s",
                                               key, missing, to_seconds(deadline_)));
    }
    if (lost_)
        throw error(errc::peer_lost, fmt::format("rank {} is lost", lost_->first))
            .with_cause(lost_->second.what());
    auto all = t.blobs;
    if (++t.left == size()) tables_.erase(key);
    return all;
}

} // namespace skein::sim
