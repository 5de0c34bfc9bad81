// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a flat store remembers of the module that it has taken over, and what it asks of it before.
// Used by <skein/train/detail/flat.ipp> alone.
//
// Parameters move to other memory when a training begins. Whatever else saw the old memory sees the
// old values from then on, and whatever is put in their place later is trained by nobody: both are
// told, at the beginning and before every step.

#include <skein/core/error.hpp>
#include <skein/torch/engine.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/flat.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

[[nodiscard]] inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    return impl.has_storage() ? impl.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/// Writes by an operation of LibTorch raise it; not those through data() or an address.
[[nodiscard]] inline std::uint32_t version_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// ---- elements in one place ----------------------------------------------------------------------

/// Whether two elements of the tensor are one number in memory: expanded, or with strides that meet.
/// Nothing can be read into such a tensor.
[[nodiscard]] inline bool shares_elements(const at::Tensor& tensor) {
    if (!tensor.defined() || storage_of(tensor) == nullptr || tensor.numel() < 2 ||
        tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense())
        return false;
    std::vector<std::pair<std::int64_t, std::int64_t>> steps; // stride and extent
    for (std::int64_t d = 0; d < tensor.dim(); ++d)
        if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
    std::ranges::sort(steps);
    std::int64_t reach = 0; // of the dimensions so far
    bool apart = true;
    for (const auto& [stride, extent] : steps) {
        apart = apart && stride > reach;
        reach += stride * (extent - 1);
    }
    if (apart) return false;
    std::vector<bool> taken(static_cast<std::size_t>(reach) + 1);
    std::vector<std::int64_t> at(steps.size(), 0);
    for (std::int64_t place = 0;;) { // all elements in turn
        if (taken[static_cast<std::size_t>(place)]) return true;
        taken[static_cast<std::size_t>(place)] = true;
        std::size_t d = 0;
        for (; d < steps.size(); ++d) {
            place += steps[d].first;
            if (++at[d] < steps[d].second) break;
            place -= steps[d].first * steps[d].second;
            at[d] = 0;
        }
        if (d == steps.size()) return false;
    }
}

/// Throws by name for a tensor whose checkpoint nobody could read back.
inline void refuse_shared_elements(std::string_view name, const at::Tensor& tensor) {
    if (!shares_elements(tensor)) return;
    throw error(errc::not_supported,
                fmt::format("not supported: elements of {} share memory (it is {} numbers in the "
                            "place of fewer, as expand() makes them)",
                            name, tensor.numel()))
        .with_hint("register it as contiguous(), or register what it is made of and expand that in "
                   "forward()");
}

// ---- before -------------------------------------------------------------------------------------

/// Memory of the flat stores of this process, while something lies in it: after a training the
/// parameters of a module share one storage, and nobody can tell which other module has a part of
/// it.
class store_memory {
public:
    static void add(const at::Tensor& flat) {
        auto& all = instance();
        const std::lock_guard lock(all.guard_);
        std::erase_if(all.known_, [](const auto& each) { return each.expired(); });
        all.known_.push_back(flat.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl());
    }
    [[nodiscard]] static bool holds(const c10::StorageImpl* storage) {
        auto& all = instance();
        const std::lock_guard lock(all.guard_);
        return std::ranges::any_of(
            all.known_, [&](const auto& each) { return each._unsafe_get_target() == storage; });
    }

private:
    static store_memory& instance() {
        static store_memory all;
        return all;
    }
    std::mutex guard_;
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

/// Tensors of a module in one storage.
struct storage_users {
    struct user {
        std::string_view name;
        const at::Tensor* tensor;
        bool trained;
    };
    std::vector<user> users;

    [[nodiscard]] bool has_trained() const {
        return std::ranges::any_of(users, [](const user& u) { return u.trained; });
    }

    void refuse_overlap() {
        const auto begin = [](const user& u) {
            return static_cast<const std::byte*>(u.tensor->const_data_ptr());
        };
        std::ranges::sort(users, {}, begin);
        for (std::size_t i = 1; i < users.size(); ++i) {
            const auto &a = users[i - 1], &b = users[i];
            if (!a.trained && !b.trained) continue;
            const auto status = at::get_overlap_status(*a.tensor, *b.tensor);
            if (status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial)
                continue;
            throw error(
                errc::not_supported,
                fmt::format("not supported: {} and {} share memory but are different tensors",
                            std::min(a.name, b.name), std::max(a.name, b.name)))
                .with_hint("register one tensor in both places, or compute the one from the other "
                           "in forward()");
        }
    }

    void refuse_others(const c10::StorageImpl* storage, std::size_t uses) const {
        if (uses <= users.size() || store_memory::holds(storage)) return;
        const auto found = std::ranges::find_if(users, [](const user& u) { return u.trained; });
        throw error(errc::not_supported,
                    fmt::format("not supported: the memory of parameter {} is held by {} other "
                                "tensor{} when the training begins: they would keep its old values",
                                found->name, uses - users.size(),
                                uses - users.size() == 1 ? "" : "s"))
            .with_hint(
                "take views of a parameter in forward(), and let go of what was kept before "
                "fit() or open(): views, detach() (keep a clone()), losses, an open archive");
    }
};

/// Throws by name when something else sees the memory of a parameter that is going to move.
inline void refuse_aliases(const std::vector<flat_segment>& segments,
                           const std::vector<fixed_tensor>& fixed) {
    std::unordered_map<const c10::StorageImpl*, storage_users> by_storage;
    std::unordered_set<const void*> seen;
    const auto add = [&](const std::string& name, const at::Tensor& tensor, bool trained) {
        const auto* const storage = storage_of(tensor);
        if (storage == nullptr || tensor.numel() == 0) return;
        if (!seen.insert(tensor.unsafeGetTensorImpl()).second) return;
        by_storage[storage].users.push_back({name, &tensor, trained});
    };
    for (const auto& s : segments)
        if (s.cut == nullptr) add(s.name, s.parameter, true);
    for (const auto& f : fixed) add(f.name, f.tensor, false);
    for (const auto& s : segments)
        if (s.cut == nullptr) refuse_shared_elements(s.name, s.parameter);
    for (const auto& f : fixed) refuse_shared_elements(f.name, f.tensor);
    for (auto& [storage, in] : by_storage) {
        if (!in.has_trained()) continue;
        in.refuse_overlap();
        in.refuse_others(storage,
                         in.users[0].tensor->unsafeGetTensorImpl()->unsafe_storage().use_count());
    }
}

/// A store lies on one device, with all of its module, and does there what it can.
///   errors  not_supported, by name
inline void require_one_device(const std::vector<flat_segment>& segments,
                               const std::vector<fixed_tensor>& fixed,
                               const store_options& options) {
    const auto& first = segments.front();
    const auto where = first.parameter.device();
    const auto require = [&](const std::string& name, const at::Tensor& tensor) {
        if (tensor.device() == where) return;
        throw error(errc::not_supported,
                    fmt::format("not supported: a model in several places: {} is on {}, {} on {}",
                                first.name, where.str(), name, tensor.device().str()))
            .with_hint("move the whole model before fit(): model->to(device)");
    };
    for (const auto& s : segments) require(s.name, s.parameter);
    for (const auto& f : fixed) require(f.name, f.tensor);
    if (where.is_cpu()) return;
    const char* const what = options.precision.compute == at::kHalf ? "float16"
                             : options.parameter_memory || options.gradient_memory
                                 ? "memory that ranks share"
                             : first.cut != nullptr ? "a model that was built in parts"
                                                    : nullptr;
    if (what == nullptr) return;
    throw error(errc::not_supported, fmt::format("not supported: {} on {}", what, where.str()))
        .with_hint("train in float32 or bfloat16 there, a model that was built whole, or on the "
                   "CPU");
}

/// LibTorch's norms take statistics and parameters of one type, or a 16-bit input with both in
/// float32.
inline void refuse_norm(const torch::nn::Module& module, const std::string& name,
                        const precision_policy& precision) {
    const auto tracks = [&](const auto* norm) {
        return norm != nullptr && norm->weight.defined() && norm->running_mean.defined();
    };
    const bool refused = tracks(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm1dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm2dImpl*>(&module)) ||
                         tracks(dynamic_cast<const torch::nn::InstanceNorm3dImpl*>(&module));
    if (!refused || (precision.keeps_f32 && precision.keeps_f32(module))) return;
    auto type = module.name(); // "torch::nn::BatchNorm2dImpl"
    if (type.ends_with("Impl")) type.resize(type.size() - 4);
    throw error(errc::invalid_argument,
                fmt::format("{} keeps running statistics in float32 and cannot compute with "
                            "parameters of 16 bits",
                            type))
        .with_where(name)
        .with_hint(fmt::format("add skein::keep_f32<{}> to the settings of the strategy, beside "
                               "precision<>",
                               type));
}

// ---- after --------------------------------------------------------------------------------------

/// Which tensors a module has registered, in order.
class taken_module {
public:
    /// The module outlives what asks; its tensors are held elsewhere, so their addresses are not
    /// used again.
    explicit taken_module(torch::nn::Module& module)
        : module_(&module), tensors_(tensors()), names_(names()) {}

    /// Empty, or what has changed.
    [[nodiscard]] std::string difference() const {
        if (is_same()) return {};
        const auto now = names();
        for (const auto& [name, tensor] : names_) {
            const auto found = now.find(name);
            if (found == now.end()) return name + " is not in the model any more";
            if (found->second != tensor) return name + " was exchanged";
        }
        for (const auto& [name, tensor] : now)
            if (!names_.contains(name)) return name + " was added";
        return "its tensors were registered in another order";
    }

private:
    /// A door to what a module keeps for those who inherit from it: named_parameters() copies every
    /// name.
    struct door : torch::nn::Module {
        static const auto& parameters_of(const torch::nn::Module& module) {
            return module.*(&door::parameters_);
        }
    };

    template <class Visit>
    void each_tensor_of(const Visit& visit) const {
        module_->apply([&](torch::nn::Module& each) {
            for (const auto& item : door::parameters_of(each)) visit(item.value());
            for (const auto& item : each.named_buffers(/*recurse=*/false)) visit(item.value());
        });
    }
    [[nodiscard]] bool is_same() const {
        std::size_t at = 0;
        bool same = true;
        each_tensor_of([&](const at::Tensor& t) {
            same = same && at < tensors_.size() && tensors_[at] == t.unsafeGetTensorImpl();
            at += 1;
        });
        return same && at == tensors_.size();
    }
    [[nodiscard]] std::vector<const void*> tensors() const {
        std::vector<const void*> all;
        each_tensor_of([&](const at::Tensor& t) { all.push_back(t.unsafeGetTensorImpl()); });
        return all;
    }
    [[nodiscard]] std::map<std::string, const void*> names() const {
        std::map<std::string, const void*> all;
        for (const auto& item : module_->named_parameters(true))
            all.emplace("parameter " + item.key(), item.value().unsafeGetTensorImpl());
        for (const auto& item : module_->named_buffers(true))
            all.emplace("buffer " + item.key(), item.value().unsafeGetTensorImpl());
        return all;
    }

    torch::nn::Module* module_;
    std::vector<const void*> tensors_;
    std::map<std::string, const void*> names_;
};

/// Masters are what was written to their values; where that is what they were cast to they stay.
inline void merge_written(const at::Tensor& master, const at::Tensor& cast,
                          const at::Tensor& values) {
    master.copy_(at::where(cast.eq(values), master, values.to(at::kFloat)));
}

/// Masters become what was written to their values in 16 bits; the others keep their digits.
///   master_P, values_P  dense, of one layout; the values were cast from the masters when nobody
///                       had written
inline void take_written(const at::Tensor& master_P, const at::Tensor& values_P) {
    constexpr std::int64_t most = std::int64_t{1} << 15; // an operation on so many takes one thread
    const auto count = master_P.numel();
    if (!master_P.device().is_cpu()) {                       // the host cannot compare bytes first
        constexpr std::int64_t part = std::int64_t{1} << 24; // its temporaries take 180 MB at most
        for (std::int64_t from = 0; from < count; from += part) {
            const auto master = master_P.narrow(0, from, std::min(part, count - from));
            const auto values = values_P.narrow(0, from, master.numel());
            merge_written(master, master.to(values.scalar_type()), values);
        }
        return;
    }
    at::parallel_for(0, (count + most - 1) / most, 16, [&](std::int64_t first, std::int64_t last) {
        const auto cast = at::empty({most}, values_P.options());
        for (auto from = first * most; from < std::min(count, last * most); from += most) {
            const auto n = std::min(most, count - from);
            const auto again = cast.narrow(0, 0, n);
            const auto master = master_P.narrow(0, from, n);
            const auto values = values_P.narrow(0, from, n);
            again.copy_(master);
            if (std::memcmp(again.const_data_ptr(), values.const_data_ptr(), values.nbytes()) != 0)
                merge_written(master, again, values);
        }
    });
}

} // namespace skein::train::detail
