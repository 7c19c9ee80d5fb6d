#pragma once

namespace halftone {

// From here on a mapped file that cannot be read to where it ended when it was opened (it was cut, or its disk fails) ends the process with
// exit status 2 and one line naming it, instead of the system's "Bus error".
void report_bus_errors();

}  // namespace halftone
