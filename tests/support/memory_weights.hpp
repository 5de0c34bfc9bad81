// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors in memory as a source of weights, for tests of what is above it.

#include <skein/train/element_values.hpp>
#include <skein/train/weight_source.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::test {

class memory_weights final : public train::weight_source {
public:
    explicit memory_weights(std::string path = "memory") : weight_source(std::move(path)) {}

    memory_weights& add(const std::string& name, std::vector<std::int64_t> shape,
                        const std::vector<double>& values, const std::string& dtype = "F32") {
        byte_buffer bytes(values.size() * train::dtype_size(dtype).value());
        if (train::is_float_type(dtype)) {
            train::write_values(dtype, values, bytes);
        } else { // I64
            for (std::size_t i = 0; i < values.size(); ++i)
                store_le<std::uint64_t>(bytes.data() + 8 * i,
                                        static_cast<std::uint64_t>(std::int64_t(values[i])));
        }
        return add_bytes(name, std::move(shape), std::move(bytes), dtype);
    }
    memory_weights& add_bytes(const std::string& name, std::vector<std::int64_t> shape,
                              byte_buffer bytes, const std::string& dtype) {
        tensors_[name] = {dtype, std::move(shape)};
        held_[name] = std::move(bytes);
        return *this;
    }

private:
    void read_rows(const std::string& name, const train::source_tensor&, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override {
        const auto row = into.size() / static_cast<std::size_t>(rows);
        const auto from = byte_span(held_.at(name)).subspan(row * std::size_t(first_row));
        std::ranges::copy(from.first(into.size()), into.begin());
    }

    std::map<std::string, byte_buffer> held_;
};

/// All elements of a tensor.
inline std::vector<double> values_of(const train::weight_source& from, const std::string& name) {
    const auto& t = from.tensors().at(name);
    byte_buffer bytes(train::tensor_bytes(t.dtype, t.shape).value());
    from.read(name, 0, t.shape.empty() ? 1 : t.shape.front(), bytes);
    std::vector<double> values(bytes.size() / train::dtype_size(t.dtype).value());
    train::read_values(t.dtype, bytes, values);
    return values;
}

} // namespace skein::test
