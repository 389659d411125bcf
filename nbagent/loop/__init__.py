"""The loop: it claims input, builds a request, streams, reviews, runs tools, repeats. Nothing else.

::

    driver    a run: turns until nothing is waiting
      step      one answer and its calls
        review    asks until the answer passes (bounded)
          recover   repeats failed attempts
            attempt   one generation:  request → barrier → stream → attempt/end
        schedule  the calls: parse → gates → barrier → body → result, in model order
    cancel    Stop, deadlines and the watchdog
    state     what one run holds
"""
