// The functions that fmt's headers declare without FMT_HEADER_ONLY; the wheel ships the headers alone.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template std::locale locale_ref::get<std::locale>() const;
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template thousands_sep_result<wchar_t> thousands_sep_impl<wchar_t>(locale_ref);
template char decimal_point_impl(locale_ref);
template wchar_t decimal_point_impl(locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
