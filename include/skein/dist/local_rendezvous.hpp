// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rendezvous for ranks that are threads of one process: tests, benchmarks, notebooks.
//
//     local_world world(2);                        // or local_world({"a", "a", "b"}): host by rank
//     std::thread t([&] { auto comm = make_communicator(world.at(1), ...); ... });

#include <skein/cluster/rendezvous.hpp>
#include <skein/core/check.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

/// The meeting place. Outlives its members; at(r) is used by one thread each.
class local_world {
public:
    explicit local_world(int size)
        : local_world(std::vector<std::string>(checked(size), "localhost")) {}
    /// One host name per rank; ranks with the same name are on one host.
    explicit local_world(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {
        for (std::size_t r = 0; r < hosts_.size(); ++r) {
            members_.push_back(std::make_unique<member>(*this, static_cast<int>(r)));
        }
    }

    [[nodiscard]] cluster::rendezvous& at(int rank) { return *members_.at(checked(rank)); }
    [[nodiscard]] int size() const noexcept { return static_cast<int>(hosts_.size()); }
    /// How long an exchange waits for the others.
    void set_deadline(duration limit) { deadline_ = limit; }

    /// Plays the loss of a rank: every other rank is told, exchanges fail.
    void lose(int rank, error why) {
        {
            const std::lock_guard lock(guard_);
            if (lost_) return;
            lost_.emplace(rank, why);
        }
        arrived_.notify_all();
        for (auto& m : members_) m->tell(rank, why);
    }

private:
    class member final : public cluster::rendezvous {
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
        cluster::subscription on_lost(cluster::loss_listeners::listener lost) override {
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
        cluster::loss_listeners losses_;
    };

    struct table {
        std::vector<byte_buffer> blobs;
        std::vector<bool> there;
        int came = 0, left = 0;
    };

    static std::size_t checked(int n) {
        SKEIN_CHECK(n >= 0, "{} ranks", n);
        return static_cast<std::size_t>(n);
    }

    std::vector<byte_buffer> exchange(std::string key, int rank, byte_span mine) {
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
        if (!arrived_.wait_for(lock, deadline_, all_here)) {
            std::string missing;
            for (int r = 0; r < size(); ++r) {
                if (!t.there[checked(r)]) missing += fmt::format(" {}", r);
            }
            throw error(errc::timeout,
                        fmt::format("exchange {}: no word from rank{} within {:.3g} s", key,
                                    missing, to_seconds(deadline_)));
        }
        if (lost_)
            throw error(errc::peer_lost, fmt::format("rank {} is lost", lost_->first))
                .with_cause(lost_->second.what());
        auto all = t.blobs;
        if (++t.left == size()) tables_.erase(key);
        return all;
    }

    std::vector<std::string> hosts_;
    net::token secret_ = net::token::generate();
    duration deadline_ = std::chrono::seconds(60);
    std::vector<std::unique_ptr<member>> members_;

    std::mutex guard_; // the fields below
    std::condition_variable arrived_;
    std::map<std::string, table> tables_;
    std::optional<std::pair<int, error>> lost_;
};

} // namespace skein::dist
