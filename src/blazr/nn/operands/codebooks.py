"""Codebooks of the IQ types (data): which points of a small lattice are in each.

A codebook is a set of rows of ``width`` digits below ``base``, in the order of the numbers that the
digits spell, the first digit being the lowest. A row is kept as one bit of a map over all numbers.
What digits stand for, with a sign above them, the packing of a type says.

Source: the tables of ``ggml-common.h`` (MIT), which were found by search and follow no formula.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache

import torch
from torch import Tensor

# By GGML type, the name of its codebook.
CODEBOOK_OF = {
    "IQ1_S": "iq1_s",
    "IQ1_M": "iq1_s",
    "IQ2_XXS": "iq2_xxs",
    "IQ2_XS": "iq2_xs",
    "IQ2_S": "iq2_s",
    "IQ3_XXS": "iq3_xxs",
    "IQ3_S": "iq3_s",
}
# Name to digits per row and their base.
_SHAPES: dict[str, tuple[int, int]] = {
    "iq2_xxs": (8, 3),
    "iq2_xs": (8, 3),
    "iq2_s": (8, 3),
    "iq3_xxs": (4, 8),
    "iq3_s": (4, 8),
    "iq1_s": (8, 3),
}


@cache
def codebook(name: str, device: torch.device) -> Tensor:
    """The rows of a codebook: digits, (rows, width), uint8."""
    width, base = _SHAPES[name]
    packed = zlib.decompress(base64.b85decode("".join(_MAPS[name].split())))
    spread = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    bits = (spread[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    numbers = bits.flatten().nonzero().flatten()
    digits = numbers[:, None] // base ** torch.arange(width) % base
    return digits.to(torch.uint8).to(device)


# One bit a number, the lowest bit of the first byte first; zlib, base 85.
_MAPS = {
    "iq2_xxs": r"""
    cmV~$!HEMw5Ckwal>cp*%cll5fc-fCR8IQ+o!>t9%6TkOM<Kl1`!y$hQ_E+08OlBBIfM`(3vjZl@|9Vw0TZxkN?@_51^
    A3md;tauP8jn6yWj=T%M^+z07?Y}05IU)=kCslRpg<iHFOQuk_8Na6FVTV6Cj9vUdS*644?oy3_xHY8w4mI04~E&C{Qe
    X0XQH400RI3pqEgj0tmo)tU?ehQ3eHI02qMG28==h1EL0i0RR9C1^_^?1OpHN1ONa4ARqt$@DIja6(a
    """,
    "iq2_xs": r"""
    cmV~$L5jmb5Ckw4^xQjO|EC8scQ3^M|H?}5`~JOW-zUHKea`L`zrUVc63=_~edj9A*;cBUtrx?*>vL7w%!*=~s6glU{y
    k^Uir-()CXeT12%fW@bTONNQ3R}|hT;PXFyMWAHc?NT)@Xv_yG_8L8Z83!P7$qu7SiyI=RNyfpQ}7)Tk$osGXZm-T&2Z
    I7mUO-xJoBMHQQhSJZJZcVs=?z&|p@o^pFjvq0v;083;WAfMGW277qZlLSz7x4m1D_1Qejqjk#Cu^6=bIT@Zzdef_jC6
    aqs*=u+gO3IK(!>J=qIGy+hDFLnbOE)W0;3Ia45PO3m)8goS>3IhWGU?}5&=>is55cvmAuqjC
    """,
    "iq2_s": r"""
    cmV~$!3o4L3;-|%oWBd{J}zAU3Do<qa#DAne*2zR_t|f+d9Ux}?r>eX`|a-gd(ZA(-RnD99nOlK>h7!i<QO$OekZFKD`
    %p7ea_qWeb(3g_C0&q>v>{YVZXh)*LSk|p1oqHT63(BRG;`x)}UAHlthLU@SXcSGsflHPt7@2$aG>b{d&z_u~V%%R=6;
    S5O6I!DeeH0C`1jr`|ZBh@9ei{_xeuObH`b+sqX&z?Dx^VzLWc*SL{^e>a*WR4ByFm7-gpd_S<*&`i|;*_KKZq&9TBl_
    xeuOL$BDWu)+m=C+jJLoeD?^#qYi6Sy8F(IaWw1hA=SBik%88WJ)0bX(uEjDF6bh?)O^XmCx|@`i^?kb=wKPzV`c=!*{
    YC#<0@{@)_np)nF(fn8kQIzmxTFEjtrdNKoI&dKhJ=0#_m>>X8F%xB#HIuKW^WkOVSn;WwOAFe)Vg1SkazD1sVmAQ^wT
    yjC6
    """,
    "iq3_xxs": r"""
    cmV~$F>V4e5CFj0)vjb+WeR$W3gs0?k)Hg>qC&hPWuBRt>!-80AAReb;+p;OvR=I)40~?(7p1^r^23mhKCV0HY;bf2sz
    shoHwd^m$pxSU`uNVmS7-2!e)Wz;Ucd#*VAzrgaGWe;AH=E_`NR>6Qqlm#rXGrg>14nl%<b13z$A8f*jSj56U!g~Rtr!
    h@o=&*6{=t$-cUsX2$%{?PZNn`!-NOG#DW3?h6I116r2KzRm3s~q(qwl0RaCNx)k;
    """,
    "iq3_s": r"""
    cmV~$L249H6ac__kJs?0SHFi5x1G)iaZb^ZWT9??AYNw@A|%;O@BpF_!Cca+zu(T=pK*A8d;Yj|Oa1=1OfRENTZT`4I4
    <$9txbxZ>-Njq)=?_?#&t9C_I3E;ChPN*n;cxm%T${=>UncFrHYH4@oFMBIY>CU!8qicDqg=n4Ts_Qet6t(D|t5F=7a6
    K+>I5hJDYv7?^(xa;=5!{bFR^X`d5b^+49gwA+DlgC&=k3o@T9ms8o|2=IX0vB{3RinCes+;(n~NwlJP$i(^F}hXn@x8
    01fhqUi)@q9rwzQ?30_S*XZ%sc|1iJ?FL+wL-0oKw+nVgOLz!(J8&=is&i8tSK8hVMf3RoD6I9QrTT#dzm3A_8LnI0!p
    Ds2*7{3#wQ>
    """,
    "iq1_s": r"""
    cmV~$&ud&o902g|j$Qd?Qo}Y*AoTQo&$N!SCB)pUm*ueoOM7`w+J7LYSW6Ml{&<=0YhPz8l!7SsG8xkLWm>i|2U%ZW3q
    94~LGk7x)EtW09E4t!6pWwG<ujsiEXh#6U)><<PopAHq{2{FpP6eqW~iJ8H0}-M%ALUPglUL@hug+sCqo^Tc`A|&?Gk?
    HFjuG}QBW_rjJk2|nIn4^)It?J?mt145*$lpkW}Tw@8M5%MZ3dWei+VwemJRj%*-gRcYmL`%VLPBvNbmhL0x#^Ka8pEV
    Xd<kti-q>igeD<l#VVH4%s`^dFmUwlw{}$zexpCII2wUdW_KcRnO!jg$1EmLfru!iNZmWfo{BKz#4_?OQM+yBT+}9AjT
    *tpxGbnP*(MNs6GY5k;$0#!9Xu}lPwjV(V&hee>@xvu2pxpRQPOQyC)U(`W<N%273OBkNuPH-Cq?02C6E7ayRf^)-E^8
    ydID0{|>!td$e3mJghIXlSdnqy}#Sl;@9IZ50C!&>gmfb>b;L&zkB@j?9uGOpEhoV@k~G9b~SB=$MwR&_58%jxz$${-)
    I9<i2Gp{m{I%z{cLXCF%mr7&ff-u2v=<gJM6*Ox?Prk^6lcU+XpSvS`2$~?zj6VfE%!eu(3`id{D>BeK(cQgY_$HO>{H
    R(PNW}B*Q>5+~l(gbtIY&lMHo(nCti$N<fcS?6pw{IS@Dd&*KQYsYtRZOLIjkZg31r<-n5+byPtrk_`8$G<@DD3_jSc0
    plu=G<o0>C2W=~cH?O|LR(+l9v;^l{|*CvBv*fQOD}WIB*s@(a^ft6c9{50=Mh`vYz$@wbR-JLI~nR|^G&!A7~Y50TU}
    u!>PR#Jjd}cv03dM5YnpflrZ*)I1f064GtiBSr6S3&T)<ND4uWooremE9b>n~I1sQ1
    """,
}
