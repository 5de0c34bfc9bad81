// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks on modelled devices in one world: kernels, collectives over NCCL's table, trouble. For the
// scenario `device`, and for the mistakes that it has to find.
//
//     const auto plan = device_plan::drawn(random);
//     std::vector<std::string> broken;
//     loop.run(run_devices(plan, {}, &broken));       // laws that did not hold

#include <skein/core/awaitable.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/nccl_communicator.hpp>
#include <skein/sim/device_model.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace skein::test {

/// What happens in one world.
struct device_plan {
    enum class trouble { none, fails, hangs, pauses, leaves };

    int ranks = 2;
    std::uint64_t seed = 1; ///< of the model
    struct round {
        int kind = 0;
        std::size_t count = 1;
        bool has_control = false; ///< a second communicator works beside the first
        duration pause{};         ///< of each rank before it
    };
    std::vector<round> rounds;
    trouble what = trouble::none;
    int victim = 0;
    std::size_t when = 0; ///< in which round
    duration paused_for{};

    static constexpr auto deadline = std::chrono::seconds(2);

    static device_plan drawn(random_source& from) {
        device_plan plan;
        plan.ranks = 2 + static_cast<int>(from.below(3));
        plan.seed = from.next();
        for (auto n = 1 + from.below(6); n > 0; --n) {
            round r;
            r.kind = static_cast<int>(from.below(6));
            r.count = static_cast<std::size_t>(1 + from.below(60));
            r.has_control = from.below(2) == 0;
            r.pause = std::chrono::microseconds(from.below(3000));
            plan.rounds.push_back(r);
        }
        if (from.below(10) < 4) plan.what = static_cast<trouble>(1 + from.below(4));
        plan.victim = static_cast<int>(from.below(static_cast<std::uint64_t>(plan.ranks)));
        plan.when = static_cast<std::size_t>(from.below(plan.rounds.size()));
        plan.paused_for = std::chrono::milliseconds(from.below(5000));
        return plan;
    }
};

/// What a rank's process has, as it is or with a mistake in it.
struct device_process {
    dist::cuda_runtime cuda;
    dist::nccl_library nccl;
    std::shared_ptr<dist::device_math> math;
};
using device_mistake = std::function<void(device_process&, int rank)>;

/// One rank of the world.
class device_rank {
public:
    device_rank(const sim::device_model& model, const device_plan& plan, int rank,
                const device_mistake& mistake)
        : model_(model), plan_(plan), rank_(rank) {
        device_process own{model.cuda(), model.nccl(), model.math()};
        if (mistake) mistake(own, rank);
        cuda_ = model.cuda();
        domain_ = std::make_shared<dist::nccl_domain>(own.cuda, own.nccl, own.math);
    }

    /// From the first allocation to the last release.
    task<void> live(dist::nccl_unique_id gradients_id, dist::nccl_unique_id control_id) {
        begin();
        try {
            auto working = work(gradients_id, control_id);
            co_await std::move(working);
        } catch (const error& e) {
            why = e;
        }
        auto closing = close(std::move(control_));
        co_await std::move(closing);
        auto closing_too = close(std::move(gradients_));
        co_await std::move(closing_too);
        has_ended = true; // but for its memory
        auto ending = end();
        co_await std::move(ending);
    }

    std::optional<error> why;
    std::size_t done = 0;
    bool wrong = false, slow = false, stuck = false;
    bool has_paused = false, has_ended = false;

private:
    static constexpr std::size_t most = 64 * 5; // elements of a buffer

    void use() const { (void)cuda_.set_device(rank_); }
    [[nodiscard]] dist::buffer_view view(void* at, std::size_t count, dist::dtype type) const {
        return {at, count, type, dist::device::cuda(static_cast<std::uint8_t>(rank_))};
    }
    void begin() {
        use();
        (void)cuda_.stream_create(&work_, dist::cuda_stream_non_blocking);
        for (void** const b : {&floats_, &halves_, &result_, &word_})
            (void)cuda_.allocate(b, most * sizeof(float));
    }
    task<void> end() {
        // Nothing is released before the host knows that its streams are idle.
        bool is_idle = false;
        for (int look = 0; look < 20000 && !is_idle; ++look) {
            use();
            is_idle = cuda_.stream_query(work_) == dist::cuda_result::success;
            if (!is_idle) co_await sleep_for(std::chrono::milliseconds(1));
        }
        stuck = !is_idle;
        if (stuck) co_return;
        for (void* const b : {floats_, halves_, result_, word_}) (void)cuda_.release(b);
        (void)cuda_.stream_destroy(work_);
    }
    static task<void> close(std::unique_ptr<dist::nccl_communicator> of) {
        if (!of) co_return;
        auto closing = of->close();
        co_await std::move(closing);
    }

    task<void> work(dist::nccl_unique_id gradients_id, dist::nccl_unique_id control_id) {
        dist::nccl_options where;
        where.device = rank_;
        where.work = work_;
        dist::collective_options limits;
        limits.deadline = device_plan::deadline;
        auto first = dist::nccl_communicator::connect(domain_, gradients_id, rank_, plan_.ranks,
                                                      where, limits);
        gradients_ = co_await std::move(first);
        auto second = dist::nccl_communicator::connect(domain_, control_id, rank_, plan_.ranks,
                                                       where, limits);
        control_ = co_await std::move(second);
        for (std::size_t n = 0; n < plan_.rounds.size(); ++n) {
            co_await sleep_for(plan_.rounds[n].pause);
            if (rank_ == plan_.victim && n == plan_.when) {
                if (plan_.what == device_plan::trouble::leaves) co_return;
                trouble();
            }
            const time_point began = loop::current().now();
            auto both = run_round(n);
            auto sure = as_result(std::move(both));
            const auto outcome = co_await std::move(sure);
            if (loop::current().now() - began > 3 * device_plan::deadline) slow = true;
            if (!outcome) throw outcome.error();
            ++done;
        }
    }
    void trouble() {
        switch (plan_.what) {
        case device_plan::trouble::fails:
            model_.fail(rank_, dist::nccl_result::system_error);
            break;
        case device_plan::trouble::hangs: model_.hang(rank_); break;
        case device_plan::trouble::pauses:
            model_.pause(rank_);
            has_paused = true;
            break;
        default: break;
        }
    }

    task<void> run_round(std::size_t n) {
        if (!plan_.rounds[n].has_control) {
            auto alone = collective(n);
            co_await std::move(alone);
            co_return;
        }
        scope both;
        both.spawn(collective(n));
        both.spawn(control_word(n));
        auto joined = both.join();
        co_await std::move(joined);
    }

    [[nodiscard]] static float value_of(int rank, std::size_t round, std::size_t i) {
        return static_cast<float>((static_cast<std::size_t>(rank) * 7 + round * 5 + i * 3) % 13) -
               6.0f;
    }
    [[nodiscard]] float sum_of(std::size_t round, std::size_t i) const {
        float sum = 0;
        for (int r = 0; r < plan_.ranks; ++r) sum += value_of(r, round, i);
        return sum;
    }
    /// A kernel that makes what this rank brings.
    void fill(void* at, std::size_t n, std::size_t count, bool as_halves) const {
        const std::size_t size = as_halves ? 2 : 4;
        model_.launch(work_, "a forward", {{at, count * size, true}}, [=, rank = rank_] {
            for (std::size_t i = 0; i < count; ++i) {
                if (as_halves)
                    static_cast<dist::bf16_t*>(at)[i] = dist::to_bf16(value_of(rank, n, i));
                else
                    static_cast<float*>(at)[i] = value_of(rank, n, i);
            }
        });
    }
    /// A kernel that uses the result, at once: it is behind the collective by the stream alone.
    void expect(void* at, std::size_t count, std::function<float(std::size_t)> want,
                bool as_halves = false) {
        model_.launch(work_, "an update", {{at, count * (as_halves ? 2u : 4u), true}},
                      [this, at, count, as_halves, want = std::move(want)] {
                          for (std::size_t i = 0; i < count; ++i) {
                              const float got =
                                  as_halves ? dist::to_float(static_cast<dist::bf16_t*>(at)[i])
                                            : static_cast<float*>(at)[i];
                              if (got != want(i)) wrong = true;
                          }
                      });
    }

    task<void> control_word(std::size_t n) {
        use();
        fill(word_, n, 3, false);
        auto sum = control_->all_reduce(view(word_, 3, dist::dtype::f32), dist::reduce_op::sum);
        co_await std::move(sum);
        use();
        expect(word_, 3, [this, n](std::size_t i) { return sum_of(n, i); });
    }

    [[nodiscard]] std::vector<std::size_t> uneven(std::size_t count) const {
        std::vector<std::size_t> counts;
        for (int r = 0; r < plan_.ranks; ++r)
            counts.push_back(static_cast<std::size_t>(r) * count % 61);
        return counts;
    }

    task<void> collective(std::size_t n) {
        use();
        switch (plan_.rounds[n].kind) {
        case 0: return sum_everywhere(n, false);
        case 1: return sum_everywhere(n, true);
        case 2: return sum_parts(n);
        case 3: return spread(n);
        case 4: return gather_uneven(n);
        default: return average_parts(n);
        }
    }
    task<void> sum_everywhere(std::size_t n, bool as_halves) {
        void* const at = as_halves ? halves_ : floats_;
        const std::size_t count = plan_.rounds[n].count;
        fill(at, n, count, as_halves);
        const auto type = as_halves ? dist::dtype::bf16 : dist::dtype::f32;
        auto sum = gradients_->all_reduce(view(at, count, type), dist::reduce_op::sum);
        co_await std::move(sum);
        use();
        expect(at, count, [this, n](std::size_t i) { return sum_of(n, i); }, as_halves);
    }
    task<void> sum_parts(std::size_t n) {
        const auto counts = uneven(plan_.rounds[n].count);
        std::size_t total = 0, first = 0;
        for (int r = 0; r < plan_.ranks; ++r) {
            if (r == rank_) first = total;
            total += counts[static_cast<std::size_t>(r)];
        }
        fill(halves_, n, total, true);
        const std::size_t own = counts[static_cast<std::size_t>(rank_)];
        auto sum = gradients_->reduce_scatter_v(view(halves_, total, dist::dtype::bf16), counts,
                                                view(result_, own, dist::dtype::f32),
                                                dist::reduce_op::sum);
        co_await std::move(sum);
        use();
        expect(result_, own, [this, n, first](std::size_t i) { return sum_of(n, first + i); });
    }
    task<void> spread(std::size_t n) {
        const std::size_t count = plan_.rounds[n].count;
        const int root = static_cast<int>(n) % plan_.ranks;
        fill(floats_, n, count, false);
        auto work = gradients_->broadcast(view(floats_, count, dist::dtype::f32), root);
        co_await std::move(work);
        use();
        expect(floats_, count, [root, n](std::size_t i) { return value_of(root, n, i); });
    }
    task<void> gather_uneven(std::size_t n) {
        const auto counts = uneven(plan_.rounds[n].count);
        std::vector<float> want;
        for (int r = 0; r < plan_.ranks; ++r) {
            for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
                want.push_back(value_of(r, n, i));
        }
        const std::size_t own = counts[static_cast<std::size_t>(rank_)];
        fill(floats_, n, own, false);
        auto work = gradients_->all_gather_v(view(floats_, own, dist::dtype::f32),
                                             view(result_, want.size(), dist::dtype::f32), counts);
        co_await std::move(work);
        use();
        const std::size_t total = want.size();
        expect(result_, total, [want = std::move(want)](std::size_t i) { return want[i]; });
    }
    task<void> average_parts(std::size_t n) {
        const std::size_t part = plan_.rounds[n].count;
        const std::size_t first = part * static_cast<std::size_t>(rank_);
        fill(floats_, n, part * static_cast<std::size_t>(plan_.ranks), false);
        auto work = gradients_->reduce_scatter(
            view(floats_, part * static_cast<std::size_t>(plan_.ranks), dist::dtype::f32),
            view(result_, part, dist::dtype::f32), dist::reduce_op::mean);
        co_await std::move(work);
        use();
        expect(result_, part, [this, n, first](std::size_t i) {
            return sum_of(n, first + i) / static_cast<float>(plan_.ranks);
        });
    }

    const sim::device_model& model_;
    const device_plan& plan_;
    int rank_;
    dist::cuda_runtime cuda_;
    std::shared_ptr<dist::nccl_domain> domain_;
    std::unique_ptr<dist::nccl_communicator> gradients_, control_;
    dist::cuda_stream work_ = nullptr;
    void *floats_ = nullptr, *halves_ = nullptr, *result_ = nullptr, *word_ = nullptr;
};

/// A device that stands still goes on after a while.
inline task<void> resume_later(const sim::device_model* model, const device_plan* plan,
                               const device_rank* victim) {
    while (!victim->has_paused && !victim->has_ended)
        co_await sleep_for(std::chrono::milliseconds(1));
    co_await sleep_for(plan->paused_for);
    model->resume(plan->victim);
}

/// The laws that did not hold, in words.
inline std::vector<std::string> broken_laws(
    const sim::device_model& model, const device_plan& plan,
    const std::vector<std::unique_ptr<device_rank>>& ranks) {
    std::vector<std::string> broken = model.complaints();
    const bool is_calm = plan.what == device_plan::trouble::none;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        const device_rank& rank = *ranks[r];
        const auto say = [&](const std::string& what) {
            broken.push_back(fmt::format("rank {}: {}", r, what));
        };
        if (rank.wrong) say("a collective gave wrong elements without an error");
        if (rank.slow) say("a collective outlived its deadline");
        if (rank.stuck) say("a stream did not become idle");
        if (rank.why && is_calm) say(fmt::format("failed: {}", rank.why->what()));
        const bool has_left =
            plan.what == device_plan::trouble::leaves && static_cast<int>(r) == plan.victim;
        if (!rank.why && !has_left && rank.done != plan.rounds.size())
            say("ended early without an error");
    }
    if (model.pending() > 0) broken.push_back("work stays on a stream");
    return broken;
}

inline task<void> run_devices(device_plan plan, device_mistake mistake,
                              std::vector<std::string>* broken) {
    sim::device_model_options how;
    how.devices = plan.ranks;
    how.seed = plan.seed;
    how.is_one_thread = true;
    const sim::device_model model(how);
    const auto nccl = model.nccl();
    dist::nccl_unique_id gradients{}, control{};
    (void)nccl.unique_id(&gradients);
    (void)nccl.unique_id(&control);
    std::vector<std::unique_ptr<device_rank>> ranks;
    scope all;
    for (int r = 0; r < plan.ranks; ++r) {
        ranks.push_back(std::make_unique<device_rank>(model, plan, r, mistake));
        all.spawn(ranks.back()->live(gradients, control));
    }
    if (plan.what == device_plan::trouble::pauses)
        all.spawn(resume_later(&model, &plan, ranks[static_cast<std::size_t>(plan.victim)].get()));
    auto joined = all.join();
    co_await std::move(joined);
    while (model.run_one()) {}
    *broken = broken_laws(model, plan, ranks);
}

} // namespace skein::test
