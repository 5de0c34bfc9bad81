// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gathers the parameters of a unit when its forward or backward begins, and drops them when it has
// ended. Used by <skein/train/detail/sharded.ipp> alone.
//
// The address of a parameter never changes: dropping gives pages back to the system, gathering
// writes the same bytes to the same place below autograd, so tensors that were saved for the
// backward pass stay valid. While a unit is dropped its parameters are empty tensors: a layer that
// reads one outside of its unit gets a shape error at once, never zeros (a sum over all parameters
// sees no elements of it).
//
// The order of gathers is a contract between ranks: in a pass every unit once in the order of the
// forward pass, then every dropped one once backwards, whether a rank uses it or not. A unit is
// dropped when the forward of another one begins: one that is used again after that is gathered
// once more, and all ranks have to do so alike (else: errc::mismatch, with both units).

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/unit.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::train::detail {

/// Gives back the pages that lie wholly inside a range of the buffer. A device keeps its memory.
SKEIN_INLINE void drop_pages(const at::Tensor& flat_P, flat_range range) {
    if (range.empty() || !flat_P.device().is_cpu()) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(flat_P.const_data_ptr());
    const auto begin =
        (at + static_cast<std::uintptr_t>(range.begin) * flat_P.element_size() + page - 1) / page *
        page;
    const auto end =
        (at + static_cast<std::uintptr_t>(range.end) * flat_P.element_size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

SKEIN_INLINE std::vector<std::size_t> counts_of(const flat_unit& unit) {
    std::vector<std::size_t> counts;
    for (const auto& shard : unit.shards) counts.push_back(static_cast<std::size_t>(shard.size()));
    return counts;
}

/// Where the parameters are, and so everything else.
[[nodiscard]] SKEIN_INLINE at::Device home_of(const torch::nn::Module& module) {
    for (const auto& p : module.parameters())
        if (p.defined()) return p.device();
    return at::kCPU;
}

SKEIN_INLINE dist::device place_of(const at::Tensor& tensor) {
    if (tensor.device().is_cpu()) return dist::device::cpu();
    return dist::device::cuda(static_cast<std::uint8_t>(tensor.device().index()));
}

SKEIN_INLINE dist::buffer_view view_of_flat(const at::Tensor& flat) {
    const auto type = flat.scalar_type() == at::kFloat      ? dist::dtype::f32
                      : flat.scalar_type() == at::kBFloat16 ? dist::dtype::bf16
                                                            : dist::dtype::f16;
    SKEIN_CHECK(type != dist::dtype::f16 || flat.scalar_type() == at::kHalf,
                "a flat buffer of type {}", c10::toString(flat.scalar_type()));
    return {flat.mutable_data_ptr(), static_cast<std::size_t>(flat.numel()), type, place_of(flat)};
}

/// The same as bytes, of any type.
SKEIN_INLINE dist::buffer_view bytes_of_flat(const at::Tensor& flat) {
    return {flat.mutable_data_ptr(), flat.nbytes(), dist::dtype::u8, place_of(flat)};
}

SKEIN_INLINE dist::ticket gather_unit(dist::comm_thread& comm, const at::Tensor& flat,
                                      const flat_unit& unit, dist::collective_tag tag) {
    const auto view = [&](flat_range r) { return view_of_flat(flat.narrow(0, r.begin, r.size())); };
    return comm.all_gather_v(view(unit.own), view(unit.place), counts_of(unit), tag);
}

class unit_gatherer final : public unit_hooks, public std::enable_shared_from_this<unit_gatherer> {
public:
    unit_gatherer(torch::nn::Module& module, flat_store& store,
                  std::unique_ptr<dist::comm_thread> comm, const shard_policy& policy)
        : store_(&store), comm_(std::move(comm)), reshard_(policy.reshard_after_forward),
          ahead_(std::max(0, policy.prefetch)) {
        std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
        for (const auto& item : module.named_modules(std::string(), false))
            modules.emplace(item.key(), item.value());
        states_.resize(store.units().size());
        for (std::size_t u = 0; u < store.units().size(); ++u) {
            const auto& unit = store.units()[u];
            if (unit.name.empty()) continue; // the root
            const auto found = modules.find(unit.name);
            auto mark = found == modules.end()
                            ? nullptr
                            : std::dynamic_pointer_cast<unit_mark>(found->second);
            if (!mark)
                throw error(
                    errc::not_supported,
                    fmt::format("not supported: between hosts and on devices FSDP gathers '{}' "
                                "when its forward begins, and that is no skein::unit",
                                unit.name))
                    .with_hint("declare the block with TORCH_MODULE_IMPL(Block, "
                               "skein::unit<BlockImpl>) and wrap by that type, or choose Zero2");
            states_[u].place = order_.size();
            states_[u].mark = std::move(mark);
            order_.push_back(u);
        }
    }

    /// Not in the constructor: the hooks hold this object.
    void attach() {
        for (const auto u : order_) states_[u].mark->attach(shared_from_this(), u);
    }
    void detach() {
        for (const auto u : order_) {
            states_[u].mark->attach(nullptr, 0);
            if (states_[u].is != place::here) states_[u].mark->lose();
        }
    }

    [[nodiscard]] dist::comm_thread& comm() noexcept { return *comm_; }
    /// Every block has its values.
    [[nodiscard]] bool is_whole() const {
        return std::ranges::all_of(states_, [](const state& s) { return s.is == place::here; });
    }

    void begin_pass(std::uint64_t step) {
        step_ = step;
        in_pass_ = true;
        backwards_ = false;
        forward_ = 0;
        const auto kept = reshard_ ? std::size_t{1} : order_.size(); // from the forward pass
        backward_ = order_.size() > kept ? order_.size() - kept : 0;
    }
    /// Takes part in every gather that is left of this pass, used here or not.
    void flush() {
        flush_forward();
        while (backward_ > 0) start(--backward_);
    }
    void end_pass() {
        flush();
        idle_.clear();
        for (const auto u : order_) drop(u);
        in_pass_ = false;
    }

    /// New values: the root is gathered, the others are dropped.
    void publish(std::uint64_t step) {
        step_ = step;
        for (std::size_t u = 0; u < states_.size(); ++u)
            if (!states_[u].mark) gather(u, dist::tag_phase::publish).wait();
        for (const auto u : order_) drop(u);
    }

    /// The whole module, until drop_all().
    void gather_all() {
        for (const auto u : order_) {
            gather(u, dist::tag_phase::publish).wait();
            store_->show(store_->units()[u], true);
            states_[u].is = place::here;
        }
        whole_ = true;
    }
    void drop_all() {
        whole_ = false;
        for (const auto u : order_) drop(u);
    }

    /// Another communicator of the same ranks in the same order; a pass that was under way is over.
    void rebind(std::unique_ptr<dist::comm_thread> comm) {
        comm_->drain();
        comm_ = std::move(comm);
        idle_.clear();
        in_pass_ = backwards_ = false;
        for (const auto u : order_) {
            auto& s = states_[u];
            if (s.is == place::coming) { // its gather may have failed
                s.gathered = {};
                s.is = place::here;
            }
            drop(u);
        }
        whole_ = false;
    }

    /// All gradients of the unit are there.
    void unit_done(std::size_t u) {
        if (states_[u].mark && !whole_) drop(u);
    }

    void before_forward(std::size_t u) override {
        if (whole_) return;
        drop_idle(u);
        if (!in_pass_)
            throw error(errc::invalid_argument,
                        fmt::format("the forward of {} outside of a training step",
                                    store_->units()[u].name))
                .with_hint("its parameters are sharded; run the model inside the loss, in an "
                           "evaluation, or after fit()");
        const auto wanted = states_[u].place + static_cast<std::size_t>(ahead_);
        while (forward_ < order_.size() && forward_ <= wanted) start(forward_++);
        need(u);
    }

    void after_forward(std::size_t u, std::span<const at::Tensor> outputs) override {
        if (whole_) return;
        if (torch::GradMode::is_enabled())
            for (const auto& output : outputs)
                if (output.defined() && output.requires_grad()) {
                    output.register_hook([weak = weak_from_this(), u](const at::Tensor&) {
                        if (const auto me = weak.lock()) me->before_backward(u);
                    });
                }
        // The last one waits for its backward, which comes next. Inside of a backward pass a block
        // is computed again, and waits for its gradients.
        if (reshard_ && !backwards_ && states_[u].place + 1 != order_.size()) idle_.push_back(u);
    }

    void before_backward(std::size_t u) override {
        if (whole_ || !in_pass_) return;
        flush_forward();
        backwards_ = true;
        const auto at = states_[u].place;
        const auto wanted = at > static_cast<std::size_t>(ahead_)
                                ? at - static_cast<std::size_t>(ahead_)
                                : std::size_t{0};
        while (backward_ > wanted) start(--backward_);
        need(u);
    }

private:
    enum class place : std::uint8_t { dropped, coming, here };
    struct state {
        std::shared_ptr<unit_mark> mark; // none: the root
        std::size_t place = 0;           // in order_
        enum place is = place::here;
        dist::ticket gathered;
    };

    /// Drops the units whose forward has ended, but for `except`.
    void drop_idle(std::size_t except) {
        for (const auto u : std::exchange(idle_, {}))
            if (u != except) drop(u);
    }

    void flush_forward() {
        drop_idle(states_.size());
        while (forward_ < order_.size()) {
            const auto u = order_[forward_];
            start(forward_++);
            if (reshard_ && forward_ != order_.size()) drop(u);
        }
    }

    void start(std::size_t at) {
        const auto u = order_[at];
        auto ticket = gather(u, dist::tag_phase::gather);
        if (states_[u].is == place::here) {
            ticket.wait(); // the same bytes once more
            return;
        }
        states_[u].gathered = std::move(ticket);
        states_[u].is = place::coming;
    }

    /// The unit's parameters have their values when it returns.
    void need(std::size_t u) {
        auto& s = states_[u];
        if (s.is == place::here) return;
        if (s.is == place::dropped) start(s.place);
        s.gathered.wait();
        store_->show(store_->units()[u], true);
        s.is = place::here;
    }

    void drop(std::size_t u) {
        auto& s = states_[u];
        if (s.is == place::dropped) return;
        if (s.is == place::coming) s.gathered.wait();
        const auto& unit = store_->units()[u];
        store_->show(unit, false);
        drop_pages(store_->values_of(unit), {unit.place.begin, unit.own.begin});
        drop_pages(store_->values_of(unit), {unit.own.end, unit.place.end});
        s.is = place::dropped;
    }

    dist::ticket gather(std::size_t u, dist::tag_phase phase) {
        const auto& unit = store_->units()[u];
        return gather_unit(*comm_, store_->values_of(unit), unit,
                           {static_cast<std::uint32_t>(u), phase, step_});
    }

    flat_store* store_;
    std::unique_ptr<dist::comm_thread> comm_;
    bool reshard_;
    int ahead_;
    std::vector<state> states_;      // by unit
    std::vector<std::size_t> idle_;  // their forward has ended, they are still gathered
    std::vector<std::size_t> order_; // units that are gathered on demand, as forward comes to them
    std::size_t forward_ = 0;        // place of the next one to gather forwards
    std::size_t backward_ = 0;       // behind the next one to gather backwards
    std::uint64_t step_ = 0;
    bool in_pass_ = false, backwards_ = false, whole_ = false;
};

} // namespace skein::train::detail
