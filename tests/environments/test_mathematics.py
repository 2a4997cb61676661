"""Answers as people write them, and whether they are equal as mathematics."""

# ruff: noqa: RUF001 - signs that look like others are read too

from __future__ import annotations

from functools import partial

import pytest
from cpu_time import within

from swarm_node.environments.mathematics.equality import equal

#: An answer and the right one, a pair a line.
EQUAL = r"""
3/4  ==  \frac{3}{4}
0.75  ==  \frac34
.75  ==  3/4
75%  ==  3/4
75%  ==  75
75 percent  ==  75\%
75  ==  75\%
0.75  ==  75%
12 cm^2  ==  12
12  ==  12 cm^2
12 square centimeters  ==  12 cm^2
12 cm²  ==  12\text{ cm}^2
12\,\mathrm{cm}^2  ==  12
12 apples  ==  12
12  ==  12 (apples)
$12.50  ==  12.5
\$12.50  ==  12.50 dollars
12.50  ==  \$12.50
€5  ==  5 euros
5 miles per hour  ==  5
60 km/h  ==  60
60 km/h  ==  60 \text{ km/h}
60  ==  60 km/h
9.8 m/s^2  ==  9.8
12 million  ==  12,000,000
1.2 million  ==  1200000
5 dozen  ==  60
-5 degrees  ==  -5
45°  ==  45^\circ
45  ==  45^{\circ}
45 degrees  ==  45^\circ
1 3/4  ==  7/4
1\frac{3}{4}  ==  7/4
1 ¾  ==  1.75
-1 1/2  ==  -1.5
6.5e-2  ==  0.065
6.5 \times 10^{-2}  ==  6.5e-2
6.5×10⁻²  ==  0.065
6.5*10^-2  ==  0.065
6.5 x 10^-2  ==  0.065
10^3  ==  1000
4.46 \cdot 10^{19}  ==  4.46e19
1.85e5  ==  185000
1,85,000  ==  1,85,000
\sqrt{2}  ==  sqrt(2)
√2  ==  \sqrt{2}
√(2)  ==  \sqrt2
2√3  ==  2\sqrt{3}
2*sqrt(3)  ==  2\sqrt{3}
\sqrt{12}  ==  2\sqrt{3}
2π  ==  2\pi
2pi  ==  2\pi
2*pi  ==  2\pi
pi/4  ==  \frac{\pi}{4}
\frac{1}{\sqrt{2}}  ==  \frac{\sqrt{2}}{2}
x^2+2x+1  ==  (x+1)^2
(x+1)**2  ==  x^2+2x+1
x² + 2x + 1  ==  (x+1)^2
x^10  ==  x^{10}
e^(2x)  ==  e^{2x}
sin(x)^2  ==  \sin^2 x
2 x y  ==  2xy
(1,2)  ==  (1, 2)
( 1 , 2 )  ==  (1,2)
1, 2  ==  (1,2)
(\frac12, 3)  ==  (0.5, 3)
{1, 2}  ==  \{2, 1\}
\{1,2\}  ==  1, 2
[1, 2, 3]  ==  1, 2, 3
1 and 2  ==  1, 2
2 or 1  ==  1, 2
x = 1 or x = 2  ==  1, 2
x=1, x=2  ==  1,2
x_1 = 1, x_2 = 2  ==  1, 2
x = 1, 2  ==  1, 2
1; 2  ==  1, 2
±3  ==  3, -3
\pm 3  ==  -3, 3
x = \pm 3  ==  \pm 3
3 \pm \sqrt{2}  ==  3+\sqrt2, 3-\sqrt2
x = 5  ==  5
5  ==  x = 5
f(x) = 2x + 1  ==  2x+1
y=2x+1  ==  2x+1
y = 2x+1  ==  2x - y + 1 = 0
x+y=1  ==  y = 1-x
x ≤ 3  ==  x \le 3
3 >= x  ==  x \le 3
x <= 3  ==  (-\infty, 3]
(-inf, 3]  ==  x \le 3
(-oo,3]  ==  (-\infty,3]
-1 < x < 2  ==  (-1, 2)
(−∞, 2) ∪ (3, ∞)  ==  (-\infty,2)\cup(3,\infty)
(3,\infty) \cup (-\infty,2)  ==  (-\infty,2)\cup(3,\infty)
[2, +\infty)  ==  [2,\infty)
x \in [2,\infty)  ==  [2,\infty)
\{x \mid -2 \le x < 1\}  ==  [-2,1)
\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}  ==  \begin{pmatrix}1&2\\3&4\end{pmatrix}
[[1,2],[3,4]]  ==  \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix} 0.5 \\ 2 \end{pmatrix}  ==  \begin{pmatrix} \frac12 \\ 2 \end{pmatrix}
(1, 2)  ==  \begin{pmatrix}1\\2\end{pmatrix}
yes  ==  Yes
Yes.  ==  \text{Yes}
\text{odd}  ==  odd
ellipse  ==  \text{ellipse}
(A)  ==  \text{A}
A  ==  \text{(A)}
3:45  ==  3:45
3:45 pm  ==  3:45 PM
03:45  ==  3:45
3:45 p.m.  ==  3:45 pm
5!  ==  120
\binom{5}{2}  ==  10
\log_2 8  ==  3
ln(2)  ==  \ln 2
1 000 000  ==  1000000
1,234.5  ==  1234.5
2{,}000  ==  2000
2,\!000  ==  2000
100,000  ==  100000
i+1  ==  1+i
3 - 2i  ==  -2i+3
\frac{\pi}{2}  ==  1.5707963
0.333333  ==  1/3
3.1415927  ==  \pi
**12**  ==  12
*12*  ==  12
"12"  ==  12
12.  ==  12
= 12  ==  12
x=12.  ==  12
The answer is 12  ==  12
It takes 12 hours.  ==  12
about 12  ==  12
approximately 3.5  ==  3.5
≈ 3.5  ==  3.5
-x+3  ==  3-x
\frac{a}{b}  ==  a/b
a/(b+c)  ==  \frac{a}{b+c}
|x-1|  ==  |1-x|
\emptyset  ==  ∅
\{\}  ==  \emptyset
infinity  ==  \infty
\infty  ==  +\infty
\frac{x+2}{3}  ==  (x+2)/3
2^{10}  ==  1024
8 \text{ units}  ==  8
8 units^2  ==  8
8\pi \text{ cm}^3  ==  8\pi
8π cm³  ==  8\pi
0.5\%  ==  0.005
1/2 or 3/4  ==  \frac12, \frac34
\frac{1}{2},\frac{3}{4}  ==  3/4, 1/2
5  ==  5.0
5.00  ==  5
+5  ==  5
--5  ==  5
1e3  ==  10^3
\text{Monday}  ==  monday
\textbf{12}  ==  12
\mathrm{e}  ==  e
\mathbf{i} + 2\mathbf{j}  ==  i + 2j
\overline{AB}  ==  \overline{AB}
12 m  ==  12
x>2 \text{ or } x<1  ==  x<1 or x>2
2 : 1  ==  2:1
y = \frac{1}{2}x  ==  y = x/2
-\frac{2}{3}  ==  \frac{-2}{3}
\frac{2}{-3}  ==  -2/3
1\,234  ==  1234
\left( 3, \frac{\pi}{2} \right)  ==  (3, pi/2)
\{x | x < 1\}  ==  x < 1
x<1 or x>2  ==  (-\infty,1)\cup(2,\infty)
(-\infty,1)\cup(2,\infty)  ==  x<1 or x>2
x \neq 2  ==  (-\infty,2)\cup(2,\infty)
1 \le x \le 3  ==  [1,3]
[1,3]  ==  1 \le x \le 3
(-\infty,\infty)  ==  \mathbb{R}
(x-1)(x+1)  ==  x^2-1
Total: 12  ==  12
Total = 12  ==  12
3/4 of a cup  ==  3/4
$\frac{3}{4}$ cup  ==  0.75
exp(2)  ==  e^2
sqrt(3)/2  ==  \frac{\sqrt{3}}{2}
cos(2x)  ==  \cos 2x
\cos(2x)  ==  \cos 2x
no solution  ==  \text{No solution}
−½  ==  -0.5
1.23E+05  ==  123000
9 + 3 = 12  ==  12
3*4=12  ==  12
3 hours  ==  3
3.0 hours  ==  3 hours
2^{3/2}  ==  2\sqrt{2}
x^(1/2)  ==  \sqrt{x}
x^-1  ==  \frac{1}{x}
f(x)=x^2  ==  x^2
a_n = 2n+1  ==  2n+1
3n^2-2n  ==  3n^{2}-2n
2(x+1)  ==  2x+2
-(x-1)  ==  1-x
1/(2x)  ==  \frac{1}{2x}
15π cm²  ==  15\pi
\frac{15\pi}{2} \text{ square units}  ==  7.5\pi
12!  ==  479001600
n!  ==  n!
\left(-\infty, -\frac{1}{2}\right]  ==  (-inf, -1/2]
$$12$$  ==  12
\(12\)  ==  12
\[12\]  ==  12
\text{(B)}  ==  B
`x+1`  ==  1+x
12 €  ==  12
12 USD  ==  $12
12 dollars  ==  $12
1,234.50 dollars  ==  1234.5
y = 3x+7  ==  y=7+3x
3x+7  ==  y = 3 x + 7
a \leq 6  ==  a \le 6
a ≤ 6  ==  6 \ge a
{1,2,3}  ==  \{3,2,1\}
3, 2, 1  ==  \{1,2,3\}
⟨1,2⟩  ==  (1,2)
\langle 1,2\rangle  ==  (1,2)
(0,0) and (1,1)  ==  (1,1), (0,0)
(1,1),(0,0)  ==  (0,0) and (1,1)
9 am  ==  9:00 am
0.1  ==  \frac{1}{10}
1/10  ==  10%
1+\sqrt{3}i  ==  1+i\sqrt3
\frac{1+\sqrt{5}}{2}  ==  (1+sqrt(5))/2
(1+√5)/2  ==  \frac{1+\sqrt{5}}{2}
x=\frac{-1\pm\sqrt{5}}{2}  ==  \frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}
θ = π/3  ==  \frac{\pi}{3}
\theta=\frac{\pi}{3}  ==  π/3
16 cups  ==  16
16  ==  16 cups of flour
8 p.m.  ==  8:00 PM
Tuesday.  ==  Tuesday
It is Tuesday  ==  It is Tuesday
5 kg  ==  5
5kg  ==  5
5cm  ==  5 cm
5 cm.  ==  5
100°C  ==  100
100 °C  ==  100
20%  ==  \frac{1}{5}
C = 5/9(F-32)  ==  \frac{5}{9}(F-32)
\frac{5}{9} (F - 32)  ==  5(F-32)/9
12 apples  ==  12 apples
an apple  ==  apple
1 apple  ==  1 apples
12 in total  ==  12 apples
12 red apples  ==  12 apples
60 mph  ==  60 miles per hour
60 mph  ==  60
60 km/h  ==  60 kilometers per hour
$3:14$  ==  3:14
5 units  ==  5 cm
5 boxes  ==  5 box
5 inches  ==  5 in
12 m^2  ==  12 \text{ square meters}
12 square meters  ==  12 m²
(1)/(b-a)(e^x)  ==  \frac{1}{b-a}e^x
(37)/(4) m  ==  \frac{37}{4} m
(5 π)/(4) √17  ==  \frac{5 \pi}{4} \sqrt{17}
2x + 2y = 2  ==  x + y = 1
negative 5  ==  -5
\text{negative } 5  ==  -5
forty-two  ==  42
0.\overline{3}  ==  1/3
0.1(6)  ==  1/6
\frac\pi2  ==  \frac{\pi}{2}
\frac{\sqrt{2}}2  ==  \frac{\sqrt2}{2}
100\pi \approx 314.16  ==  100\pi
314.16  ==  100\pi \approx 314.16
{10 \choose 3}  ==  120
all real numbers  ==  \mathbb{R}
x<-2 \lor x>1  ==  (-\infty,-2)\cup(1,\infty)
1, 2, \dots, 10  ==  1, 2, ..., 10
Therefore, Janet makes **$18** every day  ==  18
the total is 5 + 7 = 12 apples  ==  12
5 times  ==  5 times
The point is (3, 4)  ==  (3,4)
"""
UNEQUAL = r"""
2  ==  2\pi
2\pi  ==  2
2\sqrt{3}  ==  2
2x  ==  2
x \ne 5  ==  5
x > 5  ==  5
12 million  ==  12
12 dozen  ==  12
2 2/3  ==  2
1 2  ==  2
1 2  ==  1
1  ==  1, 2
1, 2  ==  1
1,2,3  ==  1,2
(1,2)  ==  (2,1)
(1,2)  ==  [1,2]
[1,2)  ==  (1,2)
\{1,2\}  ==  (1,2)
12  ==  12x
3  ==  3 m
12 cm  ==  12 m
12 dollars  ==  12 cents
€5  ==  $5
0.5%  ==  0.5
5\%  ==  0.5
1e-8  ==  2e-8
6.5e-2  ==  6.5e-3
0.33  ==  1/3
3.14  ==  \pi
x = 5  ==  x = 6
x=5  ==  y=5
x+1  ==  x+2
y=2x+1  ==  y=2x-1
not 12  ==  12
less than 12  ==  12
at least 12  ==  12
more than 12  ==  12
half of 12  ==  12
12 or 13  ==  12
12 and 13  ==  13
between 12 and 13  ==  12
3:45  ==  3:54
3:45 am  ==  3:45 pm
3:4  ==  3/4
Paris  ==  London
act  ==  cat
Paris, France  ==  Paris
no  ==  yes
\text{A}  ==  B
x<3  ==  x \le 3
x<3  ==  x>3
-5  ==  5
5  ==  -5
1/2  ==  2
10  ==  1
1234  ==  1, 234, 5
x^2  ==  x^3
a+b  ==  a-b
5!  ==  5
12  ==  1 2
\infty  ==  -\infty
\sqrt{2}  ==  2
\pm 3  ==  3
3  ==  \pm 3
\frac{1}{2}  ==  12
\begin{pmatrix}1&2\\3&4\end{pmatrix}  ==  \begin{pmatrix}1&3\\2&4\end{pmatrix}
5 feet  ==  5 square feet
x  ==  y
2^{10}  ==  210
  ==  5
5  ==  
.  ==  5
2x+1  ==  2x
7 or else 3  ==  7
x < 1 or x > 3  ==  (-\infty,1)\cup(2,\infty)
[1,3)  ==  1 \le x \le 3
2x+1=7  ==  7
x-y=5  ==  5
9 am  ==  9:00 pm
5 or 6  ==  5
5 to 6  ==  5
5-6  ==  5
5/6  ==  5
5:6  ==  5
5^6  ==  5
1.5  ==  15
1.5  ==  5
x=1,y=2  ==  1
12 of 15  ==  12
twice 5  ==  5
-x  ==  x
\sqrt{-1}  ==  1
log 3  ==  3
sin 3  ==  3
5 dozen eggs  ==  5
3x  ==  3
3a  ==  3
3 x  ==  3
1e400  ==  1e401
99999999999999999999  ==  99999999999999999998
0.1234561  ==  0.1234571
1000000  ==  1000001
A  ==  B
True  ==  False
(1,2,3)  ==  (1,2)
1,2  ==  1,3
6 2  ==  62
\frac{1}{3}  ==  0.3
1/0  ==  1
0/0  ==  0
\infty  ==  1
nan  ==  1
∅  ==  0
{}  ==  0
12 apples  ==  12 oranges
14 days  ==  14 (granola bars)
60 km/h  ==  60 mph
\frac { ab } { 3 }  ==  \frac { ab } { 4 }
x^{2}+18 x+86=0  ==  x^{2}+18 x+86=1
y=x^2 \quad y=-x  ==  y=x^3 \quad y=-x
i^{4}=1^{76}=1  ==  i^{4}=1^{76}=2
R-r  ==  0
\frac{M}{m}  ==  1
\pi r^2 h  ==  \pi R^2 h
M_1  ==  m_1
\Delta  ==  \delta
52_9  ==  52_8
52  ==  52_8
y''  ==  y'
A^T  ==  A
y''-3y'+2y=0  ==  y'-3y''+2y=0
\frac{dy}{dx}=ky  ==  \frac{dx}{dy}=ky
1+1=3  ==  1+1=2
2+2=5  ==  3+3=6
\cos(\pi/5)=1/2  ==  \cos(\pi/3)=1/2
x^2=4  ==  4
\log x=5  ==  5
July 20  ==  \text{June 20}
20  ==  June 20
Gate 12  ==  Room 12
negative 5  ==  5
5 eighths  ==  5
the sum of 5  ==  5
almost 5  ==  5
two 5  ==  5
12345  ==  (12,345)
5 J  ==  5 kJ
LRAC  ==  SRAC=LRAC
\cos (e) \approx-0.912  ==  \cos (e) \approx-0.913
"""


def pairs(block: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("  ==  ")) for line in block.strip("\n").splitlines()]


@pytest.mark.parametrize(("answer", "right"), pairs(EQUAL))
def test_one_answer_in_two_spellings(answer: str, right: str) -> None:
    assert equal(answer, right)


@pytest.mark.parametrize(("answer", "right"), pairs(UNEQUAL))
def test_another_answer(answer: str, right: str) -> None:
    assert not equal(answer, right)


@pytest.mark.parametrize("right", ["42", "1, 2, 3", "x^2 + \\sqrt{2}"])
def test_senseless_and_deep_answers_cost_little(right: str) -> None:
    """Each takes some milliseconds."""
    assert equal("1 + x", "x + 1")  # imports what it needs
    assert not equal("x + 3", right)  # and what this answer needs
    parts = [
        "(",
        "{",
        "[1,",
        r"\frac{1}{",
        "\u00b1",
        "\u00bd",
        "\ufdfa",
        "1e",
        "x^",
        "1 ",
        r"\{x|",
        "1:",
        "a ",
        "1 and ",
    ]
    for part in parts:
        for text in (part * (1024 // len(part)), part * (4096 // len(part))):
            assert not within(0.5, partial(equal, text, right), part), part
