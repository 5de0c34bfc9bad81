// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/sim/local_elastic.hpp>.

#include <skein/core/check.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::sim {

struct local_elastic::generation_world {
    explicit generation_world(int size) : ranks(size) {}
    local_world ranks;
};

class local_elastic::member final : public spmd::elastic_world {
public:
    member(local_elastic& job, std::uint64_t id) : job_(job), id_(id) {}

    std::uint64_t id() const override { return id_; }
    int least() const override { return job_.least_; }
    int most() const override { return job_.most_; }

    std::unique_ptr<spmd::rendezvous> next(spmd::world_end last,
                                           const std::string& why = {}) override {
        std::unique_lock lock(job_.guard_);
        if (!why.empty() && !job_.has_loss_) job_.why_ = why; // a loss is the better reason
        asks_ = true;
        broke_ = last == spmd::world_end::broken;
        world_.reset();
        if (job_.is_ready()) job_.form();
        job_.changed_.notify_all();
        job_.changed_.wait(lock, [&] { return lost_ || left_ || world_ != nullptr; });
        asks_ = false;
        if (lost_)
            throw error(errc::aborted, fmt::format("rank process {} was lost: {}", id_, why_));
        if (left_ || !world_) return nullptr;
        return std::make_unique<in_world>(world_, rank_, static_cast<int>(job_.generation_));
    }
    spmd::world_change change() const override {
        const std::lock_guard lock(job_.guard_);
        return {job_.generation_, static_cast<int>(job_.members_.size()), job_.why_};
    }
    bool change_wanted() const noexcept override { return wanted_.load(); }
    bool stop_wanted() const noexcept override { return job_.stops_.load(); }
    void wait_while_held() override {}
    void ask_to_leave(const std::string& why) override {
        const std::lock_guard lock(job_.guard_);
        leaves_ = true;
        why_ = why;
        for (auto* const each : job_.members_) each->wanted_ = true;
    }

private:
    friend class local_elastic;
    class in_world final : public spmd::rendezvous {
    public:
        in_world(std::shared_ptr<generation_world> of, int rank, int generation)
            : world_(std::move(of)), at_(world_->ranks.at(rank)), generation_(generation) {}
        int rank() const override { return at_.rank(); }
        int world_size() const override { return at_.world_size(); }
        int local_rank() const override { return at_.local_rank(); }
        int local_size() const override { return at_.local_size(); }
        int generation() const override { return generation_; }
        std::string host() const override { return at_.host(); }
        net::token secret() const override { return at_.secret(); }
        std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
            return at_.exchange(key, mine);
        }
        spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
            return at_.on_lost(std::move(lost));
        }

    private:
        std::shared_ptr<generation_world> world_;
        spmd::rendezvous& at_;
        int generation_;
    };

    local_elastic& job_;
    std::uint64_t id_;
    std::atomic<bool> wanted_{false};
    // guarded by the job's mutex
    bool asks_ = false, broke_ = false, lost_ = false, leaves_ = false, left_ = false;
    int rank_ = -1;
    std::string why_;
    std::shared_ptr<generation_world> world_;
};

SKEIN_INLINE local_elastic::local_elastic(int least, int most) : least_(least), most_(most) {
    SKEIN_CHECK(least >= 1 && least <= most, "{} to {} ranks", least, most);
}
SKEIN_INLINE local_elastic::~local_elastic() = default;

SKEIN_INLINE spmd::elastic_world& local_elastic::add() {
    const std::lock_guard lock(guard_);
    all_.push_back(std::make_unique<member>(*this, all_.size() + 1));
    return *all_.back();
}

SKEIN_INLINE void local_elastic::lose(std::uint64_t id, const error& why) {
    std::shared_ptr<generation_world> broken;
    int rank = -1;
    {
        const std::lock_guard lock(guard_);
        auto& gone = *all_.at(id - 1);
        if (std::exchange(gone.lost_, true)) return;
        gone.why_ = why.text();
        why_ = why.text();
        has_loss_ = true;
        if (std::ranges::find(members_, &gone) != members_.end()) {
            broken = now_;
            rank = gone.rank_;
        }
        if (is_ready()) form();
        changed_.notify_all();
    }
    if (broken) broken->ranks.lose(rank, why);
}

SKEIN_INLINE void local_elastic::stop() { stops_ = true; }

SKEIN_INLINE std::uint64_t local_elastic::generation() const {
    const std::lock_guard lock(guard_);
    return generation_;
}

SKEIN_INLINE void local_elastic::wait_for_joiner() {
    std::unique_lock lock(guard_);
    changed_.wait(lock, [&] {
        return std::ranges::any_of(all_, [&](const auto& each) {
            return each->asks_ && std::ranges::find(members_, each.get()) == members_.end();
        });
    });
    for (auto* const each : members_) each->wanted_ = true;
}

/// Every member that lives asks; of the first world all that were added do.
SKEIN_INLINE bool local_elastic::is_ready() const {
    int asking = 0;
    for (const auto& each : all_) {
        const bool is_member = std::ranges::find(members_, each.get()) != members_.end();
        if (each->lost_ || each->left_) continue;
        if (each->asks_)
            ++asking;
        else if (is_member || generation_ == 0)
            return false;
    }
    return asking >= least_;
}

SKEIN_INLINE void local_elastic::form() {
    std::vector<member*> next;
    for (auto* const each : members_)
        if (each->leaves_)
            each->left_ = true;
        else if (!each->lost_)
            next.push_back(each);
    for (const auto& each : all_)
        if (each->asks_ && !each->lost_ && !each->left_ && static_cast<int>(next.size()) < most_ &&
            std::ranges::find(members_, each.get()) == members_.end())
            next.push_back(each.get());
    members_ = std::move(next);
    now_ = std::make_shared<generation_world>(static_cast<int>(members_.size()));
    generation_ += 1;
    has_loss_ = false;
    for (std::size_t r = 0; r < members_.size(); ++r) {
        members_[r]->rank_ = static_cast<int>(r);
        members_[r]->world_ = now_;
        members_[r]->wanted_ = false;
    }
}

} // namespace skein::sim
