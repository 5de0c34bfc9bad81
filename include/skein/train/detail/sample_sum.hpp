// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checksum of what a batch holds, whatever its type: ranks that were given other files, or the
// same files in another order, are found before they train apart.

#include <skein/core/crc32c.hpp>
#include <skein/core/fields.hpp>
#include <skein/core/fnv.hpp>
#include <skein/torch/torch.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace skein::train::detail {

/// Tensors, numbers and texts, also in aggregates, pairs, optionals and ranges. Anything else is
/// passed over: two batches that differ there alone have the same sum.
class sample_sum {
public:
    /// The sum of a batch; nothing: it holds nothing that is known here.
    template <class Batch>
    [[nodiscard]] static std::optional<std::uint64_t> of(const Batch& batch) {
        sample_sum sum;
        sum.add(batch);
        return sum.parts_ == 0 ? std::nullopt : std::optional(sum.hash_.value());
    }

private:
    template <class T>
    void add(const T& value) {
        if constexpr (std::is_same_v<T, at::Tensor>)
            add_tensor(value);
        else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>)
            add_bytes(&value, sizeof value);
        else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
            const std::string_view text = value;
            add_bytes(text.data(), text.size());
        } else if constexpr (requires {
                                 { value.has_value() } -> std::convertible_to<bool>;
                                 *value;
                             }) {
            hash_.byte(value.has_value() ? 1 : 0);
            if (value.has_value()) add(*value);
        } else if constexpr (requires {
                                 value.data;
                                 value.target;
                             }) { // torch::data::Example
            add(value.data);
            add(value.target);
        } else if constexpr (requires {
                                 value.begin();
                                 value.end();
                                 value.size();
                             }) {
            hash_.number(value.size());
            for (const auto& each : value) add(std::remove_cvref_t<decltype(each)>(each));
        } else if constexpr (requires { std::tuple_size<T>::value; })
            std::apply([this](const auto&... each) { (this->add(each), ...); }, value);
        else if constexpr (plain_aggregate<T>)
            std::apply([this](const auto&... each) { (this->add(each), ...); }, tie_fields(value));
    }
    void add_tensor(const at::Tensor& tensor) {
        hash_.byte(tensor.defined() ? 1 : 0);
        if (!tensor.defined() || tensor.is_sparse() || !tensor.device().is_cpu()) return;
        const auto whole = tensor.detach().contiguous();
        hash_.number(static_cast<std::uint64_t>(whole.scalar_type()));
        for (const auto n : whole.sizes()) hash_.number(static_cast<std::uint64_t>(n));
        add_bytes(whole.const_data_ptr(), whole.nbytes());
    }
    void add_bytes(const void* data, std::size_t size) {
        ++parts_;
        hash_.number(size);
        hash_.number(crc32c({static_cast<const std::byte*>(data), size}));
    }

    fnv1a hash_;
    std::uint64_t parts_ = 0;
};

} // namespace skein::train::detail
