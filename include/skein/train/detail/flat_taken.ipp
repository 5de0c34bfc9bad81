// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/flat.hpp>: what others do to the module while it is trained.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/taken_module.hpp>

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- written to ---------------------------------------------------------------------------------

SKEIN_INLINE std::uint64_t flat_store::versions() const {
    std::uint64_t sum = 0;
    for (const auto& s : segments_) sum += detail::version_of(s.parameter);
    return sum;
}

SKEIN_INLINE void flat_store::take_writes(bool always) {
    if (!is_mixed()) return;
    at::NoGradGuard no_grad;
    const auto now = versions();
    if (always || now != written_)
        for (const auto& u : units_)
            if (u.type != at::kFloat)
                detail::take_written(params_P_.narrow(0, u.own.begin, u.own.size()),
                                     compute_P_.narrow(0, u.own.begin, u.own.size()));
    written_ = now;
    for (auto& each : cast_) {
        const auto& f = fixed_[each.fixed];
        if (std::exchange(each.version, detail::version_of(f.parameter)) == each.version) continue;
        detail::merge_written(f.tensor, f.tensor.to(each.type), f.parameter.detach());
    }
}

// ---- the module is the one that was taken -------------------------------------------------------

SKEIN_INLINE bool flat_store::is_in_place(const flat_segment& s) const {
    const auto& unit = units_[s.unit];
    const auto& values = values_of(unit);
    const auto& impl = *s.parameter.unsafeGetTensorImpl();
    if (detail::storage_of(s.parameter) != detail::storage_of(values) ||
        impl.dtype() != values.dtype())
        return false;
    if (!unit.shown) return impl.numel() == 0;
    return impl.storage_offset() == values.storage_offset() + s.offset && impl.is_contiguous() &&
           impl.sizes() == at::IntArrayRef(s.shape);
}

SKEIN_INLINE void flat_store::require_written_whole(const flat_segment& s) const {
    const bool lost = lost_ && &segments_[*lost_] == &s;
    if (!lost && (units_[s.unit].shown || detail::version_of(s.parameter) == s.dropped_at)) return;
    throw error(errc::invalid_argument,
                fmt::format("parameter {} was written to while its block had no values: it is "
                            "an empty tensor outside of the block's forward and backward",
                            s.name))
        .with_hint("write to it in the block's forward(), or choose Zero2 or DDP, under which the "
                   "parameters are always there");
}

SKEIN_INLINE void flat_store::require_taken() const {
    const auto refuse = [](const std::string& what) {
        throw error(errc::invalid_argument,
                    fmt::format("the model is not the one that the training began with: {}", what))
            .with_hint("load, convert and change a model before fit() or open(); later write to "
                       "its parameters in place (copy_() under NoGradGuard), or open another "
                       "session");
    };
    if (const auto what = taken_->difference(); !what.empty()) refuse(what);
    for (const auto& f : fixed_) detail::refuse_shared_elements(f.name, f.tensor); // set_data()
    for (const auto& s : segments_) {
        if (!is_in_place(s)) refuse(fmt::format("parameter {} was moved to other memory", s.name));
        require_written_whole(s);
    }
    for (const auto& each : cast_)
        if (const auto& f = fixed_[each.fixed];
            detail::storage_of(f.parameter) != detail::storage_of(each.values))
            refuse(fmt::format("frozen parameter {} was moved to other memory", f.name));
}

} // namespace skein::train
