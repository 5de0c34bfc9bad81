// SPDX-License-Identifier: Apache-2.0
// A class with private state is encoded by its codec, or not at all.
// expect: encodable
#include <skein/wire/encode.hpp>

class closed {
public:
    explicit closed(int v) : v_(v) {}
    int value() const { return v_; }

private:
    int v_;
};

#if defined(SKEIN_COMPILES)
template <>
struct skein::wire::codec<closed> {
    static void encode(writer& out, const closed& c) { out.fixed(c.value()); }
    static result<void> decode(reader& in, closed& c) {
        int v = 0;
        if (in.fixed(v)) c = closed(v);
        return in.status();
    }
};
#endif

auto use(const closed& c) { return skein::wire::encode(c); }
