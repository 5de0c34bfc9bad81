// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mark of a block whose parameters are gathered when its forward begins and dropped when it has ended.
//
//     struct BlockImpl : torch::nn::Module { ...; torch::Tensor forward(torch::Tensor x_BTD); };
//     TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);      // nothing else in the model changes
//
// unit<M> is an M whose forward, of exactly M's signature, asks one pointer before and after; Sequential,
// AnyModule and direct calls of forward() take it as they take M. C++ modules have no hooks, so a type is
// the only place where a strategy can stand between a block and its caller. Under strategies that keep
// the parameters where they are the pointer is null.

#include <skein/torch/tensor.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// What a strategy does around the forward pass of a unit. On the thread that calls forward().
class unit_hooks {
public:
    virtual ~unit_hooks();
    /// Returns when the unit's parameters have their values.
    virtual void before_forward(std::size_t unit) = 0;
    /// outputs: every tensor that forward() returned.
    virtual void after_forward(std::size_t unit, std::span<const at::Tensor> outputs) = 0;
};

/// The part of unit<M> that does not depend on M.
class unit_mark {
public:
    unit_mark() = default;
    unit_mark(const unit_mark&) noexcept {} // a copy of a module belongs to nobody
    unit_mark& operator=(const unit_mark&) noexcept { return *this; }
    virtual ~unit_mark();

    /// From now on `hooks` are asked, with this number. Null: nobody is.
    void attach(std::shared_ptr<unit_hooks> hooks, std::size_t number) noexcept {
        hooks_ = std::move(hooks);
        number_ = number;
    }

    /// Its parameters were sharded when a training failed: they have no values any more.
    void lose() noexcept { lost_ = true; }
    [[nodiscard]] bool is_lost() const noexcept { return lost_; }

protected:
    std::shared_ptr<unit_hooks> hooks_;
    std::size_t number_ = 0;
    bool lost_ = false;
};

namespace detail {

inline void tensors_of(const at::Tensor& from, std::vector<at::Tensor>& all) {
    all.push_back(from);
}
template <class T>
void tensors_of(const std::vector<T>& from, std::vector<at::Tensor>& all) {
    for (const auto& each : from) tensors_of(each, all);
}
template <class T, std::size_t N>
void tensors_of(const std::array<T, N>& from, std::vector<at::Tensor>& all) {
    for (const auto& each : from) tensors_of(each, all);
}
template <class... T>
void tensors_of(const std::tuple<T...>& from, std::vector<at::Tensor>& all) {
    std::apply([&](const auto&... each) { (tensors_of(each, all), ...); }, from);
}
template <class A, class B>
void tensors_of(const std::pair<A, B>& from, std::vector<at::Tensor>& all) {
    tensors_of(from.first, all);
    tensors_of(from.second, all);
}

template <class R>
concept holds_tensors =
    requires(const R& result, std::vector<at::Tensor>& all) { tensors_of(result, all); };

/// One base per signature, so that forward() of unit<M> is no template.
template <class M, class Signature>
class unit_forward;

#define SKEIN_UNIT_FORWARD(QUALIFIER)                                                              \
    template <class M, class C, class R, class... Args>                                            \
    class unit_forward<M, R (C::*)(Args...) QUALIFIER> : public M, public unit_mark {              \
        static_assert(holds_tensors<std::remove_cvref_t<R>>,                                       \
                      "the forward of a unit returns a tensor, or vectors, arrays, pairs or "      \
                      "tuples of tensors");                                                        \
                                                                                                   \
    public:                                                                                        \
        using M::M;                                                                                \
        R forward(Args... args) QUALIFIER {                                                        \
            const auto hooks = this->hooks_;                                                       \
            if (!hooks) return M::forward(std::forward<Args>(args)...);                            \
            hooks->before_forward(this->number_);                                                  \
            R result = M::forward(std::forward<Args>(args)...);                                    \
            std::vector<at::Tensor> outputs;                                                       \
            tensors_of(result, outputs);                                                           \
            hooks->after_forward(this->number_, outputs);                                          \
            return result;                                                                         \
        }                                                                                          \
    }
SKEIN_UNIT_FORWARD();
SKEIN_UNIT_FORWARD(const);
#undef SKEIN_UNIT_FORWARD

} // namespace detail
} // namespace skein::train

namespace skein {

/// A block of a model: M is the implementation, a torch::nn::Module with one forward().
template <class M>
class unit : public train::detail::unit_forward<M, decltype(&M::forward)> {
    using base = train::detail::unit_forward<M, decltype(&M::forward)>;

public:
    using base::base;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/unit.ipp>
#endif
