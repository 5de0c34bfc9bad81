// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mark of a block whose parameters are gathered when its forward begins and dropped when it has
// ended.
//
//     struct BlockImpl : torch::nn::Module { ...; torch::Tensor forward(torch::Tensor x_BTD); };
//     TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);      // nothing else in the model changes
//
// unit<M> is an M whose forward, of exactly M's signature, asks one pointer before and after;
// Sequential, AnyModule and direct calls of forward() take it as they take M. C++ modules have no
// hooks, so a type is the only place where a strategy can stand between a block and its caller.
// Under strategies that keep the parameters where they are the pointer is null.

#include <skein/torch/tensor.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

class activation_store;

/// What a strategy does around the forward pass of a unit. On the thread that calls forward().
class unit_hooks {
public:
    virtual ~unit_hooks();
    /// Returns when the unit's parameters have their values.
    virtual void before_forward(std::size_t unit) = 0;
    /// outputs: every tensor that forward() returned.
    virtual void after_forward(std::size_t unit, std::span<const at::Tensor> outputs) = 0;
    /// Returns when they have their values again, until their gradients are final.
    virtual void before_backward(std::size_t unit) = 0;
};

/// A parameter of which only a part was kept when its block had been built (build.hpp).
struct cut_parameter {
    at::Tensor parameter;              ///< the module's own, empty meanwhile
    std::vector<std::int64_t> shape;   ///< that it has when it is whole
    std::int64_t first = 0, count = 0; ///< the elements that were kept
    at::Tensor values{};               ///< these
    std::int64_t version = 0; ///< of the parameter; another one: somebody has written to it
};

/// The part of unit<M> that does not depend on M.
class unit_mark {
public:
    unit_mark() = default;
    unit_mark(const unit_mark&) noexcept {} // a copy of a module belongs to nobody
    unit_mark& operator=(const unit_mark&) = delete;
    virtual ~unit_mark();

    /// From now on `hooks` are asked, with this number. Null: nobody is.
    void attach(std::shared_ptr<unit_hooks> hooks, std::size_t number) noexcept {
        hooks_ = std::move(hooks);
        number_ = number;
    }

    /// Floating-point tensors that it is called with are cast to this type first (precision.hpp).
    void compute_in(std::optional<at::ScalarType> type) noexcept { type_ = type; }
    [[nodiscard]] std::optional<at::ScalarType> computes_in() const noexcept { return type_; }

    /// Activations are computed again in the backward pass (recompute.hpp).
    void recompute(bool yes) noexcept { recomputes_ = yes; }
    [[nodiscard]] bool recomputes() const noexcept { return recomputes_; }
    /// What the block saves for the backward pass goes there (offload.hpp); null: nowhere.
    void offload(std::shared_ptr<activation_store> to) noexcept { offload_ = std::move(to); }
    [[nodiscard]] const std::shared_ptr<activation_store>& offloads() const noexcept {
        return offload_;
    }

    /// Forward passes of this step that have still to be computed again: until then a gradient of
    /// the block is not final.
    [[nodiscard]] int pending() const noexcept { return pending_; }
    void expect(int more) const noexcept { pending_ += more; }
    void expect_nothing() const noexcept { pending_ = 0; }

    /// Parameters of this block, without those of blocks inside, that are there in part only.
    [[nodiscard]] std::vector<cut_parameter>& cut() noexcept { return cut_; }

    /// Its parameters were sharded when a training failed: they have no values any more.
    void lose() noexcept { lost_ = true; }
    [[nodiscard]] bool is_lost() const noexcept { return lost_; }

protected:
    std::shared_ptr<unit_hooks> hooks_;
    std::shared_ptr<activation_store> offload_;
    std::size_t number_ = 0;
    bool lost_ = false, recomputes_ = false;
    std::optional<at::ScalarType> type_;
    std::vector<cut_parameter> cut_;
    mutable int pending_ = 0; // forward() may be const
};

namespace detail {

// Calls visit(tensor) for every tensor in a value, in order.
template <class Visit>
void each_tensor(at::Tensor& value, const Visit& visit) {
    visit(value);
}
template <class T, class Visit>
void each_tensor(std::vector<T>& value, const Visit& visit) {
    for (auto& each : value) each_tensor(each, visit);
}
template <class T, std::size_t N, class Visit>
void each_tensor(std::array<T, N>& value, const Visit& visit) {
    for (auto& each : value) each_tensor(each, visit);
}
template <class... T, class Visit>
void each_tensor(std::tuple<T...>& value, const Visit& visit) {
    std::apply([&](auto&... each) { (each_tensor(each, visit), ...); }, value);
}
template <class A, class B, class Visit>
void each_tensor(std::pair<A, B>& value, const Visit& visit) {
    each_tensor(value.first, visit);
    each_tensor(value.second, visit);
}

template <class R>
concept holds_tensors =
    requires(R& value, void (*visit)(at::Tensor&)) { each_tensor(value, visit); };

/// Part of the graph of gradients; the tensor itself when it has the type, or holds no fractions.
[[nodiscard]] at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type);

/// The block has been built: build.hpp may cut it up.
void tell_build_scope(torch::nn::Module& block, unit_mark& mark);

/// The last member of a unit: its constructor runs when the block's has ended. A copy was built
/// before.
struct end_of_construction {
    end_of_construction(torch::nn::Module& block, unit_mark& mark) {
        tell_build_scope(block, mark);
    }
    end_of_construction(const end_of_construction&) noexcept = default;
    end_of_construction& operator=(const end_of_construction&) noexcept = default;
};

/// The forward of a block with its tensors as lists.
using block_call = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Calls it without keeping activations; the backward pass calls it again, where autograd allows
/// that, with the state of the block as it was, and leaves the state as one call would have.
///   block            whose buffers, modes and parameters these are
///   before_backward  is called before that
[[nodiscard]] std::vector<at::Tensor> call_recomputed(const unit_mark& block, block_call call,
                                                      std::vector<at::Tensor> inputs,
                                                      std::function<void()> before_backward);
[[nodiscard]] bool gradients_are_on();
[[noreturn]] void refuse_recompute();

/// Where this thread's saved tensors go from now on; returns where they went.
std::shared_ptr<activation_store> exchange_store(std::shared_ptr<activation_store> store);

/// While it lives, saved tensors go where the mark says.
class offload_guard {
public:
    explicit offload_guard(const unit_mark& mark) : set_(mark.offloads() != nullptr) {
        if (set_) before_ = exchange_store(mark.offloads());
    }
    ~offload_guard() {
        if (set_) (void)exchange_store(std::move(before_));
    }
    offload_guard(const offload_guard&) = delete;
    offload_guard& operator=(const offload_guard&) = delete;

private:
    bool set_;
    std::shared_ptr<activation_store> before_;
};

/// forward(arguments...) between the hooks.
template <class R, class Forward, class... Args>
R run_hooked(const std::shared_ptr<unit_hooks>& hooks, std::size_t number, const Forward& forward,
             Args&... arguments) {
    if (hooks) hooks->before_forward(number);
    R result = forward(arguments...);
    if (hooks) {
        std::vector<at::Tensor> outputs;
        each_tensor(result, [&](at::Tensor& t) { outputs.push_back(t); });
        hooks->after_forward(number, outputs);
    }
    return result;
}

/// The arguments that are tensors, in order.
template <class... Args, class Visit>
void each_input(std::tuple<Args...>& arguments, const Visit& visit) {
    const auto one = [&](auto& argument) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(argument)>, at::Tensor>)
            visit(argument);
    };
    std::apply([&](auto&... each) { (one(each), ...); }, arguments);
}

/// forward(arguments...), computed again in the backward pass. Tensors travel through the autograd
/// graph, the other arguments are copied. The mark lives as long as the parameters of its block.
template <class R, class Forward, class... Args>
R run_recomputed(const unit_mark& mark, const std::shared_ptr<unit_hooks>& hooks,
                 std::size_t number, const Forward& forward, Args&... args) {
    auto arguments = std::make_shared<std::tuple<Args...>>(args...);
    auto form = std::make_shared<std::optional<R>>(); // of what forward() returns
    std::vector<at::Tensor> inputs;
    each_input(*arguments, [&](at::Tensor& t) { inputs.push_back(std::exchange(t, {})); });
    auto outputs = call_recomputed(
        mark,
        [=](const std::vector<at::Tensor>& given) {
            auto with = *arguments;
            auto next = given.begin();
            each_input(with, [&](at::Tensor& t) { t = *next++; });
            const bool again = gradients_are_on(); // then it is gathered already
            R result = std::apply(
                [&](auto&... each) {
                    return again ? forward(each...)
                                 : run_hooked<R>(hooks, number, forward, each...);
                },
                with);
            std::vector<at::Tensor> tensors;
            each_tensor(result, [&](at::Tensor& t) { tensors.push_back(t); });
            if (!again) *form = std::move(result);
            return tensors;
        },
        std::move(inputs),
        [hooks, number, &mark] {
            if (mark.pending() > 0) mark.expect(-1);
            if (hooks) hooks->before_backward(number);
        });
    mark.expect(1);
    auto next = outputs.begin();
    R result = std::move(**form);
    form->reset();
    each_tensor(result, [&](at::Tensor& t) { t = std::move(*next++); });
    return result;
}

/// What unit<M> does around M's forward.
template <class R, class Forward, class... Args>
R run_unit(const unit_mark& mark, const std::shared_ptr<unit_hooks>& hooks, std::size_t number,
           const Forward& forward, Args&... args) {
    if (const auto type = mark.computes_in()) {
        const auto cast = [&](auto& argument) {
            if constexpr (holds_tensors<std::remove_reference_t<decltype(argument)>>)
                each_tensor(argument, [&](at::Tensor& t) { t = cast_to(t, *type); });
        };
        (cast(args), ...);
    }
    const offload_guard guard(mark);
    if (!mark.recomputes() || !gradients_are_on())
        return run_hooked<R>(hooks, number, forward, args...);
    if constexpr ((... && (std::same_as<Args, at::Tensor> || !holds_tensors<Args>)))
        return run_recomputed<R>(mark, hooks, number, forward, args...);
    else
        refuse_recompute();
}

/// What does not depend on the arguments.
template <class M, class R>
class unit_base : public M, public unit_mark {
    static_assert(holds_tensors<R>,
                  "the forward of a unit returns a tensor, or vectors, arrays, pairs or tuples of "
                  "tensors");

public:
    using M::M;

protected:
    [[nodiscard]] bool is_plain() const noexcept {
        return !this->hooks_ && !this->recomputes_ && !this->type_ && !this->offload_;
    }
    template <class Call, class... Copies>
    R run(const Call& call, Copies... copies) const {
        return run_unit<R>(*this, this->hooks_, this->number_, call, copies...);
    }
};

/// Arguments are copied for the second call: nothing may be handed back through them.
template <class Arg>
constexpr bool takes_values =
    !std::is_lvalue_reference_v<Arg> || std::is_const_v<std::remove_reference_t<Arg>>;

/// One base per signature, so that forward() of unit<M> is no template.
template <class M, class Signature>
class unit_forward;

template <class M, class C, class R, class... Args>
class unit_forward<M, R (C::*)(Args...)> : public unit_base<M, R> {
    using base = unit_base<M, R>;
    static_assert((... && takes_values<Args>), "the forward of a unit writes to no argument");

public:
    using base::base;
    R forward(Args... args) {
        if (this->is_plain()) return M::forward(std::forward<Args>(args)...);
        const auto call = [this](std::remove_cvref_t<Args>&... arguments) -> R {
            return M::forward(static_cast<Args>(arguments)...);
        };
        return this->run(call, std::remove_cvref_t<Args>(args)...);
    }
};

template <class M, class C, class R, class... Args>
class unit_forward<M, R (C::*)(Args...) const> : public unit_base<M, R> {
    using base = unit_base<M, R>;
    static_assert((... && takes_values<Args>), "the forward of a unit writes to no argument");

public:
    using base::base;
    R forward(Args... args) const {
        if (this->is_plain()) return M::forward(std::forward<Args>(args)...);
        const auto call = [this](std::remove_cvref_t<Args>&... arguments) -> R {
            return M::forward(static_cast<Args>(arguments)...);
        };
        return this->run(call, std::remove_cvref_t<Args>(args)...);
    }
};

} // namespace detail
} // namespace skein::train

namespace skein {

/// A block of a model: M is the implementation, a torch::nn::Module with one forward().
template <class M>
class unit : public train::detail::unit_forward<M, decltype(&M::forward)> {
    using base = train::detail::unit_forward<M, decltype(&M::forward)>;

public:
    using base::base;

private:
    [[no_unique_address]] train::detail::end_of_construction built_{*this, *this};
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/unit.ipp>
#endif
