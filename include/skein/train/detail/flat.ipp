// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/flat.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/type_name.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/detail/flat_taken.ipp>
#include <skein/train/detail/gradient_watch.hpp>
#include <skein/train/detail/square_sums.hpp>
#include <skein/train/detail/taken_module.hpp>
#include <skein/train/unit.hpp>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include <malloc.h>
#include <sys/mman.h>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE at::Tensor make_flat_buffer(std::int64_t elements, at::ScalarType type,
                                         at::Device where) {
    if (!where.is_cpu())
        return at::zeros({elements}, at::TensorOptions().dtype(type).device(where));
    const auto bytes =
        static_cast<std::size_t>(elements > 0 ? elements : 1) * c10::elementSize(type);
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        throw error(errc::exhausted, fmt::format("no memory for a flat buffer of {} bytes", bytes))
            .with_hint("use a smaller model or a machine with more memory");
    ::madvise(memory, bytes, MADV_HUGEPAGE); // a wish: fewer page faults and TLB misses
    return at::from_blob(
        memory, {elements}, [bytes](void* p) { ::munmap(p, bytes); },
        at::TensorOptions().dtype(type));
}

SKEIN_INLINE void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0)
        ::mallopt(M_MMAP_THRESHOLD, 32 << 20); // older glibc
#endif
}

SKEIN_INLINE double squared_norm(std::span<const at::Tensor> parts) {
    return detail::square_sums(parts).of_all();
}

SKEIN_INLINE double squared_norm(const at::Tensor& flat_P) {
    return squared_norm(std::span(&flat_P, 1));
}

namespace detail {
/// Runs after each parameter's gradient has been accumulated. The only hook on its node, so that
/// what has to follow (when_final) does not depend on the order in which hooks were registered.
struct settle_hook : torch::autograd::FunctionPostHook {
    settle_hook(flat_store& of, std::size_t number) : store(&of), segment(number) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& gradients) override {
        store->passed(segment, !gradients.empty() && gradients[0].defined());
        return outputs;
    }
    flat_store* store;
    std::size_t segment;
};
} // namespace detail

SKEIN_INLINE flat_store::flat_store(torch::nn::Module& module, const store_options& options)
    : shards_(options.shards), saved_elsewhere_(options.saved_elsewhere) {
    at::NoGradGuard no_grad;
    std::vector<plan_parameter> found;
    collect(module, found);
    const auto device = segments_.front().parameter.device();
    detail::require_one_device(segments_, fixed_, options);
    detail::refuse_aliases(segments_, fixed_);
    unit_plan plan{{""}, std::vector<std::size_t>(found.size(), 0)};
    if (options.plan) plan = options.plan(module, found);
    if (options.precision.is_mixed()) {
        for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
            detail::refuse_norm(*item.value(), item.key(), options.precision);
        for (std::size_t i = 0; i < fixed_.size(); ++i)
            if (!fixed_[i].is_buffer && fixed_[i].tensor.scalar_type() == at::kFloat)
                cast_.push_back({i, options.precision.compute});
    }
    if (options.precision.keeps_f32) keep_in_float32(module, options, plan);
    place(plan, options);
    place_gradients(options.gradient_places);
    if (options.only_layout) return;

    const auto& precision = options.precision;
    const auto make = [device](const auto& from, std::int64_t elements, at::ScalarType type) {
        return from ? from(elements, type) : make_flat_buffer(elements, type, device);
    };
    params_P_ = make(options.parameter_memory, size_, at::kFloat);
    if (precision.is_mixed()) compute_P_ = make(options.parameter_memory, size_, precision.compute);
    for (const auto& flat : {params_P_, compute_P_})
        if (flat.defined()) detail::store_memory::add(flat);
    grads_P_ = make(options.gradient_memory, grads_size_, precision.reduce);
    if (options.gradient_places > 0 || precision.reduce != at::kFloat)
        own_grads_ = make_flat_buffer(owned_, at::kFloat, device);
    adopt_parameters(options.brings_values);
    detail::forget_cuts(module);
    if (options.gradient_places == 0)
        for (auto& s : segments_) s.parameter.mutable_grad() = grad_view(s);
    touched_.assign(segments_.size(), 0.0);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        auto node = torch::autograd::impl::grad_accumulator(segments_[i].parameter);
        const auto key = node->add_post_hook(std::make_unique<detail::settle_hook>(*this, i));
        hooks_.emplace_back(std::move(node), key);
    }
    taken_ = std::make_shared<const detail::taken_module>(module);
    written_ = versions();
}

SKEIN_INLINE flat_store::~flat_store() {
    for (auto& [node, key] : hooks_) node->del_post_hook(key);
}

// ---- layout -------------------------------------------------------------------------------------

SKEIN_INLINE void flat_store::collect(torch::nn::Module& module,
                                      std::vector<plan_parameter>& found) {
    std::unordered_map<const void*, std::size_t> seen;   // tensor objects: tied parameters
    std::unordered_map<const void*, std::string> memory; // data pointers: hidden aliases
    constexpr auto frozen = static_cast<std::size_t>(-1);
    for (const auto& each : module.modules(/*include_self=*/false))
        if (const auto* mark = dynamic_cast<const unit_mark*>(each.get()); mark && mark->is_lost())
            throw error(errc::invalid_argument,
                        "the parameters of a block were lost with a training that failed")
                .with_where(type_name(typeid(*mark)))
                .with_hint("build the model anew, or load a checkpoint into a new one");
    const auto cut = detail::cut_parameters(module);
    const auto named = module.named_parameters(true);
    for (const auto& item : named) {
        const auto& p = item.value();
        if (!p.defined()) continue;
        const auto [known, fresh] =
            seen.emplace(p.unsafeGetTensorImpl(), p.requires_grad() ? segments_.size() : frozen);
        if (!fresh) {
            if (known->second != frozen) found[known->second].aliases.push_back(item.key());
            continue;
        }
        const auto part = cut.find(p.unsafeGetTensorImpl());
        if (part != cut.end()) check_cut(*part->second, item.key());
        if (!p.requires_grad()) {
            fixed_.push_back({item.key(), p, false, p});
            continue;
        }
        if (p.scalar_type() != at::kFloat || !(p.device().is_cpu() || p.device().is_cuda()))
            throw error(errc::not_supported,
                        fmt::format("not supported: trainable parameter {} of type {} on {}",
                                    item.key(), c10::toString(p.scalar_type()), p.device().str()))
                .with_hint("train float32 parameters, on the CPU or on a device of CUDA");
        const auto shape = part != cut.end() ? part->second->shape : p.sizes().vec();
        const auto count = c10::multiply_integers(shape);
        const auto [other, first] = memory.emplace(p.const_data_ptr(), item.key());
        if (p.numel() > 0 && !first)
            throw error(
                errc::not_supported,
                fmt::format("not supported: {} and {} share memory but are different tensors",
                            other->second, item.key()))
                .with_hint("register one tensor in both places");
        segments_.push_back({.name = item.key(),
                             .parameter = p,
                             .shape = shape,
                             .count = count,
                             .padded = padded_count(count),
                             .row = std::max<std::int64_t>(
                                 1, !shape.empty() && shape[0] > 0 ? count / shape[0] : 1),
                             .registered = segments_.size(),
                             .cut = part != cut.end() ? part->second : nullptr});
        found.push_back({item.key(), {}, count});
        trainable_ += count;
    }
    for (const auto& item : module.named_buffers(true))
        if (item.value().defined()) fixed_.push_back({item.key(), item.value(), true});
    if (segments_.empty())
        throw error(errc::invalid_argument, "the model has no trainable parameter")
            .with_hint("is every parameter frozen, or was no submodule registered?");
}

/// A parameter that was cut up when its block was built is as it was then.
SKEIN_INLINE void flat_store::check_cut(const cut_parameter& cut, const std::string& name) {
    if (!cut.parameter.requires_grad())
        throw error(errc::not_supported,
                    "not supported: a parameter that was frozen after its block was built in parts")
            .with_where(name)
            .with_hint("freeze it in the block's constructor, or build the model without build()");
    if (cut.parameter._version() != cut.version || cut.parameter.numel() != 0)
        throw error(errc::invalid_argument,
                    "a parameter was written to after its block was built in parts")
            .with_where(name)
            .with_hint("draw or load its values in the block's constructor, or with "
                       "train::for_each_parameter()");
}

/// Parameters of modules that stay in float32 become a unit of their own, without a name as the
/// root: the last to be reduced and never dropped.
SKEIN_INLINE void flat_store::keep_in_float32(torch::nn::Module& module,
                                              const store_options& options, unit_plan& plan) {
    std::vector<std::string> prefixes;
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
        if (options.precision.keeps_f32(*item.value())) prefixes.push_back(item.key() + ".");
    if (prefixes.empty())
        throw error(errc::invalid_argument, "keep_f32<> matches no module of the model")
            .with_hint("give it the types of modules that there are, or leave it out");
    const auto is_kept = [&](const std::string& name) {
        return std::ranges::any_of(prefixes, [&](const auto& p) { return name.starts_with(p); });
    };
    for (auto& unit : plan.unit_of) unit += 1;
    plan.names.insert(plan.names.begin(), "");
    for (const auto& s : segments_)
        if (is_kept(s.name)) plan.unit_of[s.registered] = 0;
    std::erase_if(cast_, [&](const auto& each) { return is_kept(fixed_[each.fixed].name); });
}

/// Sorts the segments by unit and gives everything its place.
SKEIN_INLINE void flat_store::place(const unit_plan& plan, const store_options& options) {
    SKEIN_CHECK(plan.unit_of.size() == segments_.size(), "a plan for {} of {} parameters",
                plan.unit_of.size(), segments_.size());
    for (auto& s : segments_) s.unit = plan.unit_of[s.registered];
    std::ranges::stable_sort(segments_, {}, &flat_segment::unit);
    for (std::size_t i = 0; i < segments_.size();) {
        flat_unit unit;
        unit.name = plan.names[segments_[i].unit];
        unit.first = i;
        unit.place.begin = size_;
        std::vector<placed_parameter> placed;
        const auto number = segments_[i].unit;
        for (; i < segments_.size() && segments_[i].unit == number; ++i) {
            auto& s = segments_[i];
            s.offset = size_;
            s.unit = units_.size();
            placed.push_back({s.offset, s.count, s.row});
            size_ += s.padded;
        }
        unit.last = i;
        unit.place.end = size_;
        const bool kept = options.precision.keeps_f32 && number == 0;
        unit.type = kept ? at::kFloat : options.precision.compute;
        unit.shards = cut_unit(placed, unit.place, options.shards);
        unit.own = unit.shards[static_cast<std::size_t>(options.shard)];
        unit.own_at = owned_;
        owned_ += unit.own.size();
        own(unit);
        units_.push_back(std::move(unit));
    }
}

SKEIN_INLINE void flat_store::own(const flat_unit& unit) {
    for (auto i = unit.first; i < unit.last; ++i) {
        const auto& s = segments_[i];
        const auto mine = overlap({s.offset, s.offset + s.padded}, unit.own);
        if (mine.empty()) continue;
        const auto first = mine.begin - s.offset;
        pieces_.push_back({.segment = i,
                           .first = first,
                           .count = std::min(mine.end - s.offset, s.count) - first,
                           .padded = mine.size(),
                           .flat = mine.begin,
                           .at = unit.own_at + (mine.begin - unit.own.begin)});
    }
}

/// The root, which lasts for the whole step, keeps a place of its own; the others take turns.
SKEIN_INLINE void flat_store::place_gradients(int places) {
    if (places == 0) {
        for (auto& u : units_) u.grads_at = u.place.begin;
        grads_size_ = size_;
        return;
    }
    std::int64_t most = 0, own_places = 0;
    for (auto& u : units_) {
        if (u.name.empty()) {
            u.grads_at = own_places;
            own_places += u.place.size();
        } else {
            most = std::max(most, u.place.size());
        }
    }
    std::int64_t turn = 0;
    for (auto& u : units_)
        if (!u.name.empty()) u.grads_at = own_places + most * (turn++ % places);
    grads_size_ = own_places + most * std::min<std::int64_t>(turn, places);
}

SKEIN_INLINE void flat_store::adopt_parameters(bool brings_values) {
    for (auto& s : segments_) {
        if (s.cut != nullptr)
            take_cut(s);
        else if (brings_values)
            view_of(params_P_, s).copy_(s.parameter);
        s.parameter.set_data(view_of(values_of(units_[s.unit]), s));
    }
    if (brings_values || std::ranges::any_of(units_, &flat_unit::in_parts)) cast_all(brings_values);
    for (auto& each : cast_) { // a float32 twin keeps the values
        auto& f = fixed_[each.fixed];
        f.tensor = f.parameter.detach();
        each.values = at::empty_like(f.tensor, each.type);
        f.parameter.set_data(each.values);
    }
    cast_fixed();
}

SKEIN_INLINE void flat_store::cast_fixed() {
    at::NoGradGuard no_grad;
    for (auto& each : cast_) {
        const auto& f = fixed_[each.fixed];
        f.parameter.detach().copy_(f.tensor);
        each.version = detail::version_of(f.parameter);
    }
}

/// Every rank brings what it kept.
SKEIN_INLINE void flat_store::take_cut(flat_segment& s) {
    auto& cut = *std::exchange(s.cut, nullptr);
    const auto own = overlap({s.offset, s.offset + s.count}, units_[s.unit].own);
    if (own.size() != cut.count || (cut.count > 0 && own.begin - s.offset != cut.first))
        throw error(errc::not_supported,
                    "not supported: a block that was built in parts for another layout")
            .with_where(s.name)
            .with_hint("train it with the trainer that built it; a weight that is tied to another "
                       "block's is to be tied in the constructor of a block around both");
    params_P_.narrow(0, own.begin, own.size()).copy_(cut.values);
    cut.values.reset();
    units_[s.unit].in_parts = true;
}

SKEIN_INLINE void flat_store::cast_owned() {
    at::NoGradGuard no_grad;
    for (const auto& u : units_)
        if (u.type != at::kFloat)
            compute_P_.narrow(0, u.own.begin, u.own.size())
                .copy_(params_P_.narrow(0, u.own.begin, u.own.size()));
}

SKEIN_INLINE void flat_store::cast_all(bool whole_units) {
    at::NoGradGuard no_grad;
    for (const auto& u : units_) {
        const auto there = u.in_parts ? u.own : u.place;
        if (u.type != at::kFloat && (u.in_parts || whole_units))
            compute_P_.narrow(0, there.begin, there.size())
                .copy_(params_P_.narrow(0, there.begin, there.size()));
    }
    cast_fixed();
}

SKEIN_INLINE at::Tensor flat_store::view_of(const at::Tensor& flat_P, const flat_segment& s) {
    return flat_P.narrow(0, s.offset, s.count).view(s.shape);
}

SKEIN_INLINE void flat_store::show(const flat_unit& unit, bool visible) {
    at::NoGradGuard no_grad;
    for (auto i = unit.first; i < unit.last; ++i) {
        auto& s = segments_[i];
        const auto& values = values_of(unit);
        const auto version = detail::version_of(s.parameter);
        if (!unit.shown && version != s.dropped_at) lost_ = i; // told at the next step
        s.dropped_at = version;
        s.parameter.set_data(visible ? view_of(values, s) : values.narrow(0, 0, 0));
    }
    units_[segments_[unit.first].unit].shown = visible;
}

SKEIN_INLINE void flat_store::leave_shared_memory() {
    at::NoGradGuard no_grad;
    auto own = make_flat_buffer(size_, at::kFloat, params_P_.device());
    own.copy_(params_P_);
    params_P_ = std::move(own);
    detail::store_memory::add(params_P_);
    show_masters(/*whole=*/true);
}

SKEIN_INLINE void flat_store::show_masters(bool whole) {
    at::NoGradGuard no_grad;
    for (auto& u : units_) {
        if (u.type != at::kFloat && !whole)
            for (const auto& [begin, end] :
                 {flat_range{u.place.begin, u.own.begin}, flat_range{u.own.end, u.place.end}})
                params_P_.narrow(0, begin, end - begin)
                    .copy_(compute_P_.narrow(0, begin, end - begin));
        u.type = at::kFloat;
        show(u, true);
    }
    compute_P_ = at::Tensor();
    for (const auto& each : std::exchange(cast_, {}))
        fixed_[each.fixed].parameter.set_data(fixed_[each.fixed].tensor);
}

SKEIN_INLINE std::uint64_t flat_store::layout_hash() const {
    fnv1a h;
    const auto add = [&h](const std::string& name, at::ScalarType type,
                          std::span<const std::int64_t> shape) {
        h.number(name.size());
        h.text(name);
        h.number(static_cast<std::uint64_t>(type));
        for (auto n : shape) h.number(static_cast<std::uint64_t>(n));
    };
    std::vector<const flat_segment*> ordered(segments_.size());
    for (const auto& s : segments_) ordered[segments_.size() - 1 - s.registered] = &s;
    h.number(segments_.size());
    for (const auto* s : ordered) add(s->name, at::kFloat, s->shape); // whatever it is computed in
    for (const auto& f : fixed_) add(f.name, f.tensor.scalar_type(), f.tensor.sizes());
    return h.value();
}

// ---- gradients ----------------------------------------------------------------------------------

SKEIN_INLINE at::Tensor flat_store::grads_of(const flat_unit& unit) const {
    return grads_P_.narrow(0, unit.grads_at, unit.place.size());
}

SKEIN_INLINE at::Tensor flat_store::grad_view(const flat_segment& s) const {
    const auto& u = units_[s.unit];
    return grads_P_.narrow(0, u.grads_at + (s.offset - u.place.begin), s.count).view(s.shape);
}

SKEIN_INLINE const void* flat_store::place_of(const flat_segment& s) const {
    const auto& u = units_[s.unit];
    return static_cast<const std::byte*>(grads_P_.const_data_ptr()) +
           (u.grads_at + (s.offset - u.place.begin)) *
               static_cast<std::int64_t>(grads_P_.element_size());
}

SKEIN_INLINE at::Tensor flat_store::own_grads(const owned_piece& piece) const {
    if (own_grads_.defined()) return own_grads_.narrow(0, piece.at, piece.padded);
    const auto& u = units_[segments_[piece.segment].unit];
    return grads_P_.narrow(0, u.grads_at + (piece.flat - u.place.begin), piece.padded);
}

SKEIN_INLINE double flat_store::own_squared_norm() const {
    if (!norm_) { // once: making a view costs as much as adding a thousand numbers
        std::vector<std::pair<std::size_t, at::Tensor>> ordered;
        for (const auto& piece : pieces_)
            ordered.emplace_back(segments_[piece.segment].registered, own_grads(piece));
        std::ranges::sort(ordered, std::greater<>(), [](const auto& each) { return each.first; });
        std::vector<at::Tensor> parts;
        for (auto& [registered, part] : ordered) parts.push_back(std::move(part));
        norm_ = std::make_shared<const detail::square_sums>(parts);
    }
    return norm_->of_all();
}

SKEIN_INLINE void flat_store::move_gradients(
    const std::function<at::Tensor(std::int64_t, at::ScalarType)>& from, bool saved_elsewhere) {
    const auto type = grads_P_.scalar_type();
    auto next =
        from ? from(grads_size_, type) : make_flat_buffer(grads_size_, type, params_P_.device());
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    norm_.reset(); // it looks into the old ones
    grads_P_ = std::move(next);
    saved_elsewhere_ = saved_elsewhere;
}

SKEIN_INLINE void flat_store::expect_gradients() {
    require_taken();
    take_writes(/*always=*/false);
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    touched_.assign(segments_.size(), 0.0);
    pass_.adds = false;
    for (const auto& f : fixed_)
        if (!f.is_buffer && f.parameter.requires_grad())
            throw error(
                errc::not_supported,
                fmt::format("not supported: parameter {} was frozen when the training began "
                            "and is trainable now",
                            f.name))
                .with_hint("unfreeze it before fit(), or start another fit()");
}

SKEIN_INLINE void flat_store::begin_pass(bool adds) {
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    pass_.adds = adds;
}

SKEIN_INLINE void flat_store::settle_gradients(const flat_unit& unit) {
    for (auto i = unit.first; i < unit.last; ++i) settle(i);
}

SKEIN_INLINE void flat_store::settle_gradients() {
    for (const auto& u : units_) settle_gradients(u);
}

SKEIN_INLINE void flat_store::take_gradients(const flat_unit& unit, bool add) {
    at::NoGradGuard no_grad;
    for (auto i = unit.first; i < unit.last; ++i) segments_[i].parameter.mutable_grad().reset();
    if (unit.own.empty()) return;
    const auto reduced =
        grads_P_.narrow(0, unit.grads_at + (unit.own.begin - unit.place.begin), unit.own.size());
    auto kept = own_grads_.narrow(0, unit.own_at, unit.own.size());
    if (add)
        kept.add_(reduced);
    else
        kept.copy_(reduced);
}

SKEIN_INLINE void flat_store::passed(std::size_t i, bool has_gradient) {
    if (has_gradient) touched_[i] = 1.0;
    if ((pass_.adds || pass_.watch != nullptr) && is_settled(segments_[i]))
        throw error(errc::not_supported,
                    fmt::format("not supported: a gradient became final twice in the backward pass "
                                "of one {}",
                                pass_.watch != nullptr ? "micro-batch whose gradients are looked at"
                                                       : "logical shard"))
            .with_where(segments_[i].name)
            .with_hint("a custom function runs a backward pass inside backward, over a weight that "
                       "is used outside of it too");
    if (!may_settle_ || may_settle_(i)) settle(i);
    if (final_) final_(i);
}

SKEIN_INLINE bool flat_store::is_settled(const flat_segment& s) const {
    const auto& grad = s.parameter.grad();
    return grad.defined() && !grad.is_sparse() && grad.const_data_ptr() == place_of(s);
}

SKEIN_INLINE void flat_store::settle(std::size_t i) {
    at::NoGradGuard no_grad;
    auto& s = segments_[i];
    if (is_settled(s)) return;
    auto& grad = s.parameter.mutable_grad();
    auto view = grad_view(s);
    if (pass_.watch != nullptr)
        pass_.watch->put(i, grad, view, pass_.adds);
    else
        detail::put_gradient(view, grad, pass_.adds);
    grad = view;
    if (own_grads_.defined() && s.padded > s.count) { // another unit was here
        const auto& u = units_[s.unit];
        grads_P_.narrow(0, u.grads_at + (s.offset - u.place.begin) + s.count, s.padded - s.count)
            .zero_();
    }
}

namespace detail {

SKEIN_INLINE void cast_inputs(torch::nn::Module& module, const flat_store& store, bool on) {
    if (on && !store.is_mixed()) return;
    const auto set = [&](unit_mark* mark, const std::string& prefix) {
        if (mark == nullptr) return;
        std::optional<at::ScalarType> type;
        for (const auto& s : store.segments())
            if (on && s.name.starts_with(prefix) && store.units()[s.unit].type != at::kFloat)
                type = store.units()[s.unit].type;
        mark->compute_in(type);
    };
    set(dynamic_cast<unit_mark*>(&module), "");
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
        set(dynamic_cast<unit_mark*>(item.value().get()), item.key() + ".");
}

} // namespace detail

} // namespace skein::train
